// Package auth decides who a request is from and what it may do: tokens that
// spell out an identity, and RBAC with the default roles that tests need.
package auth
