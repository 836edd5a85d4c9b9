package audit

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"
)

// PluginName is the admission plugin that notes the old object of each write.
const PluginName = "PlaneAudit"

// Register adds the plugin.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{admission.NewHandler(admission.Update, admission.Delete)}, nil
	})
}

type plugin struct{ *admission.Handler }

// Admit sees updates before their preconditions are checked.
func (*plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	Before(ctx, a.GetOldObject())
	return nil
}

// Validate sees deletes: their old object is not known earlier.
func (*plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Delete {
		Before(ctx, a.GetOldObject())
	}
	if a.IsDryRun() {
		noteDryRun(ctx)
	}
	return nil
}
