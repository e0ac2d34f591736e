// Package hub is a client of a Hugging Face hub: it downloads the files of a model into the cache that all programs of
// this machine share, and finds them there.
//
// # Concept
//
// A [Ref] names a repository at a revision, and perhaps one file: hf://org/name@rev/file. [Client.Pull] asks the server
// which commit the revision is and which files it has, chooses those that a model needs, asks for the hash and size of
// each, downloads what the cache lacks, and only when every byte is verified makes the snapshot appear. [Client.Cached]
// does the same without a network, from what is there.
//
// The cache has the layout of the huggingface_hub library, so that each finds what the other downloaded:
//
//	CACHE/models--ORG--NAME/blobs/ETAG               content, named by its hash
//	CACHE/models--ORG--NAME/blobs/ETAG.incomplete    the beginning of a content
//	CACHE/models--ORG--NAME/snapshots/COMMIT/FILE    a relative link to a blob
//	CACHE/models--ORG--NAME/refs/REVISION            the commit of a branch or tag, 40 hexadecimal digits
//	CACHE/models--ORG--NAME/.no_exist/COMMIT/FILE    empty: the commit is known not to have that file
//	CACHE/.locks/models--ORG--NAME/ETAG.lock         held (flock) while a blob is written
//
// The server's etag of a file is the SHA-256 of its content if it is kept in large file storage, else the SHA-1 that git
// gives it: of "blob SIZE\0" and the content. Either is checked while the bytes arrive.
//
// A reference to data, hf://datasets/org/name, means files of records: see chooseData. Its folder is datasets--ORG--NAME, and it keeps the
// names of a commit's files in listings/COMMIT, for a part of them must not pass for the whole.
//
// # Caveats
//
// Everything a server says is suspect. Names of files, commits and etags are checked by POSIX and Windows rules, and
// all writing goes through an os.Root at the repository's folder (fault of kind UnsafePath). The token goes to the
// origin of the endpoint and nowhere else, whatever redirects; no text of a server reaches an error or a log but quoted
// names.
//
// Links of a snapshot appear last, when all its blobs are there, and the revision's ref after them. The huggingface_hub
// library makes links as it goes, so a snapshot is believed only if it holds all shards that its index names, and its
// configuration and tokenizer or the mark that there are none.
//
// A lock that a file system pretends to give costs a second download, not a wrong blob: content is checked before it gets
// its name. File systems without symbolic links are not supported. Pickles (.bin, .pt) are chosen only by a pattern.
package hub
