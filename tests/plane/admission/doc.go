// Package admission holds the plugins that kube-apiserver adds to those of the
// libraries (namespace lifecycle, admission policies, webhooks): priority,
// service account and toleration defaults; Pod Security; resource quotas.
package admission
