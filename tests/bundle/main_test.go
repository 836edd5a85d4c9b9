package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const committed = "../../bundle"

func TestCommittedBundleIsValid(t *testing.T) {
	found, err := validate(committed)
	if err != nil || len(found) > 0 {
		t.Fatal(err, strings.Join(found, "\n"))
	}
}

// One mistake for each validator, so that the absence of findings has a meaning.
func TestEachValidatorReportsItsMistake(t *testing.T) {
	const csv = "manifests/lockstep.clusterserviceversion.yaml"
	for _, mistake := range []struct{ file, old, spoilt, finding string }{
		{csv, "name: lockstep.v", "name: lockstep_v", "metadata.name"},
		{csv, "kind: NodeAgent\n", "kind: Agent\n", "not found in bundle"},
		{csv, "capabilities: Basic Install", "capabilities: Best", "not a valid capabilities level"},
		{csv, "categories: AI/Machine Learning", "categories: AI", "not in the set of standard categories"},
		{csv, "email: maintainers@", "email: maintainers", "email maintainerslockstep.example is invalid"},
		{csv, `\"nodeagents.training.lockstep.dev\",`, "", "should have an example annotation"},
		{"manifests/nodeagents.training.lockstep.dev.customresourcedefinition.yaml", "scope: Cluster", "scope: Node", "scope"},
		{"manifests/lockstep-manager.poddisruptionbudget.yaml", "minAvailable: 1", "minAvailable: 100%", "minAvailable field cannot be set to 100%"},
		{"metadata/annotations.yaml", "channels.v1: candidate", "channels.v1: beta", "recommended naming convention"},
	} {
		t.Run(mistake.finding, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.CopyFS(folder, os.DirFS(committed)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, mistake.file)
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), mistake.old) {
				t.Fatalf("%s does not contain %q: %v", mistake.file, mistake.old, err)
			}
			spoilt := strings.ReplaceAll(string(text), mistake.old, mistake.spoilt)
			if err := os.WriteFile(path, []byte(spoilt), 0o644); err != nil {
				t.Fatal(err)
			}
			found, err := validate(folder)
			if err != nil || !strings.Contains(strings.Join(found, "\n"), mistake.finding) {
				t.Fatalf("found %q, %v", found, err)
			}
		})
	}
}
