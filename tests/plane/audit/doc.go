// Package audit writes one JSON line for every HTTP write, and one for every
// distinct kind of read. A write's line is in the file before its response is
// released, so that a test may kill a client keyed on the k-th line: whatever the
// client could have learned from a write is preceded by its line.
//
// The three parts: Handler wraps the whole server and holds back responses to
// writes; Authorizer notes who asks for what; the admission plugin and the
// storage note the object's versions.
package audit
