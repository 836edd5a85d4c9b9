// Package smoke holds the tests that start a plane and look at it as its users
// do: through kubectl and client-go. It has no code of its own.
package smoke
