// Package driver opens a Vulkan loader at run time and calls what a device for computing needs of it: instance,
// adapters, device, memory, buffers, pipelines, command buffers and fences, of Vulkan 1.1 and no extension but the
// one that tells how much memory is free.
//
// Structures are laid out as in vulkan_core.h; their names there are those here without Vk. A call that fails returns
// an *Error with the name of the function and its result. Nothing here is safe for concurrent use but Open.
//
// Caveats. The loader is never closed: drivers do not survive that. Handles of 64 bits are kept in uintptr, so a
// process of 32 bits has no Vulkan device.
package driver
