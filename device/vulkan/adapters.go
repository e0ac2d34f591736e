package vulkan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"apr/device/vulkan/driver"
	"apr/internal/fault"
)

// BuiltIn reports whether this binary can open a Vulkan loader at all.
const BuiltIn = driver.Dynamic

// NamedLoader is the id of the fault of a loader that APR_VULKAN_LIB names and that cannot be used.
const NamedLoader = driver.NamedLoader

// Adapter is a physical device as it is found, before anything is opened on it.
type Adapter struct {
	driver.Adapter
	Unfit  error // why the kernels cannot run on it; nil: they can
	ByName bool  // it is taken only if it is asked for by name, because a program imitates it
	Budget int64 // bytes that a run may allocate; 0: unknown
}

// What the kernels need of an adapter.
const (
	leastAPI    = 1<<22 | 1<<12
	leastShared = 16 << 10
	leastGroups = 65535
	leastBound  = 1 << 20 // bytes of a binding
)

// Adapters describes what the loader shows, and says which file the loader is. Without a loader or a driver it is a
// fault of kind Unavailable that says what was found.
func Adapters() (loader string, all []Adapter, err error) {
	i, err := driver.Open()
	if err != nil {
		return "", nil, err
	}
	found, err := i.Adapters()
	if err != nil {
		return i.Path(), nil, unavailable("the Vulkan loader "+i.Path()+" cannot list adapters", err)
	}
	for _, a := range found {
		all = append(all, Adapter{Adapter: a, Unfit: unfit(&a), ByName: !a.Type.Hardware(), Budget: budgetOf(&a)})
	}
	if len(all) == 0 {
		return i.Path(), nil, fault.New(fault.Unavailable, "the Vulkan loader %s finds no adapter", i.Path()).
			WithID("E-VULKAN-005").
			WithHint("install a driver (Debian: mesa-vulkan-drivers, or the card's own); --backend cpu works everywhere")
	}
	return i.Path(), all, nil
}

// ShortName is the first word of an adapter's name, in small letters: what --backend vulkan:NAME may say.
func ShortName(a Adapter) string {
	word, _, _ := strings.Cut(a.Name, " ")
	return strings.ToLower(word)
}

// unfit says why the kernels cannot run on an adapter, or nil.
func unfit(a *driver.Adapter) error {
	l := &a.Limits
	var what string
	switch {
	case a.API < leastAPI:
		what = "its driver serves Vulkan " + a.APIText() + "; 1.1 or later is needed"
	case !a.Computes():
		what = "it has no queue that computes"
	case l.PushConstants < 4*driver.MaxPush:
		what = fmt.Sprintf("it has %d bytes of push constants; %d are needed", l.PushConstants, 4*driver.MaxPush)
	case l.StorageBindings < driver.MaxBindings:
		what = fmt.Sprintf("a kernel may have %d storage bindings; %d are needed", l.StorageBindings, driver.MaxBindings)
	case l.Shared < leastShared:
		what = fmt.Sprintf("a group has %d bytes of shared memory; %d are needed", l.Shared, leastShared)
	case l.Groups < leastGroups:
		what = fmt.Sprintf("a dispatch may have %d groups; %d are needed", l.Groups, leastGroups)
	case l.Binding < leastBound:
		what = fmt.Sprintf("a binding may have %d bytes; %d are needed", l.Binding, leastBound)
	default:
		return nil
	}
	return fault.New(fault.Unavailable, "%s cannot be used: %s", a.Name, what).
		WithHint("--backend cpu works everywhere").WithID("E-VULKAN-006")
}

// preference orders adapters: discrete ones first, then integrated ones.
func preference(a Adapter) int {
	switch a.Type {
	case driver.Discrete:
		return 0
	case driver.Integrated:
		return 1
	}
	return 2
}

// choose returns the adapter that a name means: a part of its name or its driver's, or its number. Without a name it
// is the best that is no program.
func choose(all []Adapter, name string) (Adapter, error) {
	var list []string
	fits := make([]Adapter, 0, len(all))
	for _, a := range all {
		list = append(list, fmt.Sprintf("%d: %s (%s)", a.Index, a.Name, a.Type))
		number, err := strconv.Atoi(name)
		switch {
		case name == "" && !a.ByName && a.Unfit == nil, err == nil && number == a.Index,
			name != "" && err != nil && (contains(a.Name, name) || contains(a.Driver, name)):
			fits = append(fits, a)
		}
	}
	if len(fits) == 0 {
		f := fault.New(fault.Unavailable, "no Vulkan adapter is real hardware that the kernels run on; found %s",
			strings.Join(list, ", ")).WithID("E-VULKAN-007")
		if name != "" {
			f = fault.New(fault.Unavailable, "no Vulkan adapter is called %q; found %s", name, strings.Join(list, ", ")).
				WithID("E-VULKAN-007")
		}
		return Adapter{}, f.WithHint("an adapter that a program imitates is taken by name alone, as in " +
			"--backend vulkan:llvmpipe; " +
			"--backend cpu works everywhere")
	}
	slices.SortStableFunc(fits, func(a, b Adapter) int { return cmp.Compare(preference(a), preference(b)) })
	return fits[0], fits[0].Unfit
}

func contains(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

func unavailable(what string, err error) error {
	return fault.New(fault.Unavailable, "%s", what).WithID("E-VULKAN-008").Because(err)
}
