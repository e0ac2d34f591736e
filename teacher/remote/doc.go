// Package remote lets a teacher say rows to students in other processes, over TCP.
//
// A Server answers with the rows of a cache, as package cache encodes them, to whoever knows its token. A Client asks
// one or several servers for rows ahead of their use, as many as Lead says, and goes on at the next row when a
// connection breaks. docs/teach.md specifies every byte.
//
// Caveats. The package knows nothing of models: a function makes the rows. It encrypts nothing by itself: a
// connection is what the listener or the dialer makes of it, and who lets them leave the machine gives them TLS.
package remote
