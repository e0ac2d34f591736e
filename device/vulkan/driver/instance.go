package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"apr/internal/fault"
)

// LibraryVariable names the file of the loader. If it is set, no other file is tried.
const LibraryVariable = "APR_VULKAN_LIB"

// NamedLoader is the id of the fault of a loader that LibraryVariable names and that cannot be used.
const NamedLoader = "E-VULKAN-010"

// Attempt is a file that was tried as the loader.
type Attempt struct{ Path, Error string }

// libraries are the names of the loader on this system, best first; macOS may have MoltenVK alone.
func libraries() []string {
	switch runtime.GOOS {
	case "windows":
		return []string{"vulkan-1.dll"}
	case "darwin":
		return []string{"libvulkan.1.dylib", "/usr/local/lib/libvulkan.1.dylib", "/opt/homebrew/lib/libvulkan.1.dylib",
			"libMoltenVK.dylib", "/opt/homebrew/lib/libMoltenVK.dylib"}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}

// Instance is an opened loader. There is one in a process.
type Instance struct {
	path   string // of the loader, as it was opened
	handle uintptr
	get    uintptr // vkGetInstanceProcAddr

	enumerate, properties, memory, families, extensions, createDevice, deviceProc uintptr
}

// open is the instance of the process, made when it is first asked for.
var open = sync.OnceValues(func() (*Instance, error) {
	if !Dynamic {
		return nil, fault.New(fault.Unavailable,
			"this binary was built without the Vulkan device (build tag static, or a system without it)").
			WithHint("use a build without the tag static; --backend cpu works everywhere").WithID("E-VULKAN-001")
	}
	own := os.Getenv(LibraryVariable)
	names := libraries()
	if own != "" {
		names = []string{own}
	}
	var tried []Attempt
	for _, name := range names {
		handle, err := dlopen(name)
		if err != nil {
			tried = append(tried, Attempt{name, strings.TrimPrefix(err.Error(), name+": ")})
			continue
		}
		get, err := dlsym(handle, "vkGetInstanceProcAddr")
		if err != nil {
			tried = append(tried, Attempt{name, "has no function vkGetInstanceProcAddr"})
			continue
		}
		return newInstance(name, get)
	}
	if own != "" {
		return nil, fault.New(fault.Unavailable, "the Vulkan loader that %s names cannot be used: %s: %s",
			LibraryVariable, own, tried[0].Error).WithID(NamedLoader).
			WithHint("unset %s to take the loader of the system, or let it name one", LibraryVariable)
	}
	var list []string
	for _, a := range tried {
		list = append(list, a.Path+" ("+a.Error+")")
	}
	return nil, fault.New(fault.Unavailable, "no Vulkan loader was found; tried %s", strings.Join(list, "; ")).
		WithID("E-VULKAN-002").
		WithHint("--backend cpu works everywhere; for Vulkan install the loader (Debian: libvulkan1) and a driver, "+
			"or set %s", LibraryVariable)
})

// Open returns the instance of this process. Without a loader it is a fault of kind Unavailable that lists what was
// tried.
func Open() (*Instance, error) { return open() }

// Path is the loader's file, as it was opened.
func (i *Instance) Path() string { return filepath.ToSlash(i.path) }

// The structures' types (VkStructureType).
const (
	typeApplication         = 0
	typeInstance            = 1
	typeQueue               = 2
	typeDevice              = 3
	typeSubmit              = 4
	typeMemoryAllocate      = 5
	typeFence               = 8
	typeBuffer              = 12
	typeShaderModule        = 16
	typePipelineCache       = 17
	typeShaderStage         = 18
	typeComputePipeline     = 29
	typePipelineLayout      = 30
	typeSetLayout           = 32
	typeDescriptorPool      = 33
	typeDescriptorSet       = 34
	typeWriteDescriptor     = 35
	typeCommandPool         = 39
	typeCommandBuffer       = 40
	typeCommandBufferBegin  = 42
	typeMemoryBarrier       = 46
	typeProperties2         = 1000059001
	typeMemoryProperties2   = 1000059006
	typeMaintenance3        = 1000168000
	typeDriverProperties    = 1000196000
	typeMemoryBudget        = 1000237000
	version11               = 1<<22 | 1<<12
	enumeratePortability    = 1 // flag of the instance
	portabilityExtension    = "VK_KHR_portability_enumeration"
	portabilitySubset       = "VK_KHR_portability_subset"
	memoryBudgetExtension   = "VK_EXT_memory_budget"
	driverPropertyExtension = "VK_KHR_driver_properties"
)

type applicationInfo struct {
	typ  uint32
	_    unsafe.Pointer // next
	name *byte
	_    uint32 // version
	_    *byte  // engine
	_    uint32 // version of the engine
	api  uint32
}

type instanceInfo struct {
	typ             uint32
	next            unsafe.Pointer
	flags           uint32
	application     *applicationInfo
	layerCount      uint32
	layers          **byte
	extensionCount  uint32
	extensionsNames **byte
}

// newInstance makes an instance of Vulkan 1.1.
func newInstance(path string, get uintptr) (*Instance, error) {
	i := &Instance{path: path, get: get}
	app := &applicationInfo{typ: typeApplication, name: cstring("apr"), api: version11}
	info := &instanceInfo{typ: typeInstance, application: app}
	if names, err := extensionNames("vkEnumerateInstanceExtensionProperties",
		i.global("vkEnumerateInstanceExtensionProperties"), 0); err == nil && names[portabilityExtension] {
		ext := []*byte{cstring(portabilityExtension)}
		info.flags, info.extensionCount, info.extensionsNames = enumeratePortability, 1, &ext[0]
	}
	create := i.global("vkCreateInstance")
	if create == 0 {
		return nil, fault.New(fault.Unavailable, "%s has no vkCreateInstance", path).WithID("E-VULKAN-003")
	}
	if err := failed("vkCreateInstance", invoke(create, uintptr(unsafe.Pointer(info)), 0,
		uintptr(unsafe.Pointer(&i.handle)))); err != nil {
		return nil, fault.New(fault.Unavailable, "the Vulkan loader %s finds no driver of Vulkan 1.1 or later", path).
			WithID("E-VULKAN-003").Because(err).
			WithHint("install a driver (Debian: mesa-vulkan-drivers, or the card's own); vulkaninfo lists what is there")
	}
	for name, f := range map[string]*uintptr{
		"vkEnumeratePhysicalDevices": &i.enumerate, "vkGetPhysicalDeviceProperties2": &i.properties,
		"vkGetPhysicalDeviceMemoryProperties2":     &i.memory,
		"vkGetPhysicalDeviceQueueFamilyProperties": &i.families, "vkEnumerateDeviceExtensionProperties": &i.extensions,
		"vkCreateDevice": &i.createDevice, "vkGetDeviceProcAddr": &i.deviceProc,
	} {
		if *f = i.proc(name); *f == 0 {
			return nil, fault.New(fault.Unavailable, "the Vulkan loader %s has no %s", path, name).WithID("E-VULKAN-003").
				WithHint("Vulkan 1.1 or later is needed")
		}
	}
	return i, nil
}

// global returns a function that needs no instance, 0 for none.
func (i *Instance) global(name string) uintptr {
	return invoke(i.get, 0, uintptr(unsafe.Pointer(cstring(name))))
}

// proc returns a function of the instance, 0 for none.
func (i *Instance) proc(name string) uintptr {
	return invoke(i.get, i.handle, uintptr(unsafe.Pointer(cstring(name))))
}

// extensionNames lists the extensions of the instance, or of an adapter.
func extensionNames(call string, f, adapter uintptr) (map[string]bool, error) {
	args := func(n *uint32, all unsafe.Pointer) uintptr {
		if adapter == 0 {
			return invoke(f, 0, uintptr(unsafe.Pointer(n)), uintptr(all))
		}
		return invoke(f, adapter, 0, uintptr(unsafe.Pointer(n)), uintptr(all))
	}
	if f == 0 {
		return nil, fmt.Errorf("there is no %s", call)
	}
	n := new(uint32)
	if err := failed(call, args(n, nil)); err != nil || *n == 0 {
		return nil, err
	}
	const size, nameSize = 260, 256
	all := make([]byte, size*int(*n))
	if err := failed(call, args(n, unsafe.Pointer(&all[0]))); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for k := range int(*n) {
		names[gostring(all[k*size:][:nameSize])] = true
	}
	return names, nil
}

// cstring returns s with a zero behind it.
func cstring(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}

// gostring returns the bytes before the first zero.
func gostring(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
