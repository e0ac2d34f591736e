package hub

// noFollow is nothing here: making a link takes rights that a stranger does not have.
const noFollow = 0

// linkHard gives a blob a second name, where the user may not make symbolic links, and reports whether it did.
func (d folder) linkHard(blob, name string) bool { return d.root.Link(blob, name) == nil }
