package hub

import (
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"apr/internal/fault"
	"apr/internal/readfile"
)

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha1Form   = commitForm
	namePart   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
)

// Limits of names.
const (
	maxName  = 1024 // bytes of a file's path
	maxParts = 16   // folders and name
	maxRepo  = 96   // bytes of org/name, the hub's own limit
)

// CheckName refuses the path of a file in a repository, or the name of a revision, that could mean anything but a file
// below a folder, on any system: absolute or not clean, with "..", backslash, colon, control characters, names that
// Windows keeps for devices, cuts, or cannot hold, or ".git". Faults are of kind UnsafePath.
func CheckName(name string) error {
	parts := strings.Split(name, "/")
	bad := len(name) > maxName || len(parts) > maxParts
	for _, part := range parts {
		bad = bad || unsafePart(part)
	}
	if bad {
		return fault.New(fault.UnsafePath, "%q is not a safe relative path", clip(name)).WithID("E-HUB-004")
	}
	return nil
}

// unsafePart reports whether one component of a path is unsafe on some system.
func unsafePart(part string) bool {
	return readfile.PlainName(part) != nil || !utf8.ValidString(part) || strings.ContainsAny(part, `<>"|?*`) ||
		strings.HasSuffix(part, ".") || strings.HasSuffix(part, " ") || strings.HasPrefix(part, " ") ||
		strings.EqualFold(part, ".git") || windowsConsole(part)
}

// windowsConsole reports the devices of Windows that readfile.PlainName does not know.
func windowsConsole(part string) bool {
	stem, _, _ := strings.Cut(strings.ToUpper(part), ".")
	switch strings.TrimRight(stem, " ") {
	case "CONIN$", "CONOUT$", "CLOCK$", "COM0", "LPT0", "COM¹", "COM²", "COM³", "LPT¹", "LPT²", "LPT³":
		return true
	}
	return false
}

// escapes reports whether a listed name is an attempt to leave the folder, not just a name that some
// system cannot hold. A repository may hold logs with odd names; a server that lists these is not to be trusted at all.
func escapes(name string) bool {
	slashed := strings.ReplaceAll(name, `\`, "/")
	drive := len(name) > 1 && name[1] == ':' && (name[0]|0x20) >= 'a' && (name[0]|0x20) <= 'z'
	return name == "" || strings.HasPrefix(slashed, "/") || drive || strings.ContainsRune(name, 0) ||
		strings.HasPrefix(path.Clean(slashed)+"/", "../") || strings.Contains("/"+slashed+"/", "/../")
}

// checkRepo refuses what is not org/name by the hub's own rules.
func checkRepo(repo string) error {
	parts := strings.Split(repo, "/")
	bad := len(repo) > maxRepo || len(parts) != 2 || strings.Contains(repo, "--") || strings.Contains(repo, "..") || strings.HasSuffix(repo, ".git")
	for _, part := range parts {
		bad = bad || !namePart.MatchString(part) || unsafePart(part)
	}
	if bad {
		return fault.New(fault.UnsafePath, "%q is not the name of a repository: org/name of letters, digits, '-', '_' and '.'", clip(repo)).WithID("E-HUB-005")
	}
	return nil
}

// checkETag refuses an etag that is no hash: of a content's SHA-256, or of git's SHA-1.
func checkETag(etag string) error {
	switch {
	case readfile.IsSHA256(etag) || sha1Form.MatchString(etag):
		return nil
	case unsafePart(etag):
		return fault.New(fault.UnsafePath, "etag %q of the server is not a safe file name", clip(etag)).WithID("E-HUB-006")
	}
	return fault.New(fault.Network, "etag %q of the server is neither a SHA-256 nor a git SHA-1, so the content could not be checked", clip(etag)).WithID("E-HUB-007")
}

// checkCommit refuses what is no commit.
func checkCommit(commit, whose string) error {
	if !commitForm.MatchString(commit) {
		return fault.New(fault.UnsafePath, "%s: %q is not a commit of 40 hexadecimal digits", whose, clip(commit)).WithID("E-HUB-008")
	}
	return nil
}

// clip shortens a stranger's text for a message.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
