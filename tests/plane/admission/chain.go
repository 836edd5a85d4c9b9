package admission

import (
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"lockstep/tests/plane/audit"

	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
)

// Apply puts the whole chain into the server's configuration. Ours run first,
// as kube-apiserver's defaulting plugins do; quotas are asked last, when nothing
// else can refuse any more.
func Apply(config *genericapiserver.Config, inf informers.SharedInformerFactory, client kubernetes.Interface, dyn dynamic.Interface) error {
	options := genericoptions.NewAdmissionOptions()
	audit.Register(options.Plugins)
	registerDefaults(options.Plugins, inf, client)
	if err := registerPodSecurity(options.Plugins, inf, client); err != nil {
		return fmt.Errorf("pod security: %w", err)
	}
	resourcequota.Register(options.Plugins)
	order := []string{audit.PluginName, defaultsPlugin}
	order = append(order, options.RecommendedPluginOrder...)
	options.RecommendedPluginOrder = append(order, podSecurityPlugin, resourcequota.PluginName)
	quotas := quotaInitializer{NewQuotaConfiguration(inf)}
	return options.ApplyTo(config, inf, client, dyn, utilfeature.DefaultFeatureGate, config.EffectiveVersion, quotas)
}

// quotaInitializer hands the quota plugin its configuration.
type quotaInitializer struct{ config *QuotaConfiguration }

func (i quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(i.config)
	}
}
