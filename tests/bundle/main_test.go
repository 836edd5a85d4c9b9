package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/property"
)

const (
	committed   = "../../bundle"
	bundleImage = "ghcr.io/lockstep-dev/lockstep-bundle" + digest
	digest      = "@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
)

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
			folder := copied(t)
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

// copied returns a folder with the committed bundle.
func copied(t *testing.T) string {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(committed)); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestCatalogNamesTheBundleAndAllThatItOwns(t *testing.T) {
	folder := copied(t)
	if err := writeCatalog(folder, bundleImage); err != nil {
		t.Fatal(err)
	}
	// As the file of a catalog, which has no folders of bundles.
	alone := t.TempDir()
	if err := os.Rename(filepath.Join(folder, catalogFile), filepath.Join(alone, catalogFile)); err != nil {
		t.Fatal(err)
	}
	read, err := declcfg.LoadFS(context.Background(), os.DirFS(alone))
	if err != nil {
		t.Fatal(err)
	}
	model, err := declcfg.ConvertToModel(*read)
	if err != nil {
		t.Fatal(err)
	}
	head, err := model["lockstep"].DefaultChannel.Head()
	if err != nil || head.Image != bundleImage {
		t.Fatal(head, err)
	}
	properties, err := property.Parse(head.Properties)
	if err != nil || len(properties.GVKs) != 5 || len(properties.CSVMetadatas) != 1 || len(properties.BundleObjects) != 0 {
		t.Fatal(properties, err)
	}
	var images []string
	for _, related := range head.RelatedImages {
		images = append(images, strings.TrimPrefix(related.Image, "ghcr.io/lockstep-dev/lockstep-"))
	}
	if named := strings.Join(images, " "); named != "manager:v0.1.0 agent:v0.1.0 run:v0.1.0 bundle"+digest {
		t.Fatal(named)
	}
}

// One mistake for each kind of blob, so that the absence of findings has a meaning.
func TestEachMistakeInACatalogIsReported(t *testing.T) {
	for _, mistake := range []struct {
		finding string
		spoil   func(*declcfg.DeclarativeConfig)
	}{
		{"channel must contain at least one bundle", func(c *declcfg.DeclarativeConfig) { c.Packages[0].DefaultChannel = "stable" }},
		{"unknown package", func(c *declcfg.DeclarativeConfig) { c.Packages[0].Name = "other" }},
		{"unknown package", func(c *declcfg.DeclarativeConfig) { c.Channels[0].Package = "other" }},
		{"not found in any channel entries", func(c *declcfg.DeclarativeConfig) { c.Channels[0].Entries[0].Name = "lockstep.v9.0.0" }},
		{"olm.package", func(c *declcfg.DeclarativeConfig) { c.Bundles[0].Properties = nil }},
		{"image", func(c *declcfg.DeclarativeConfig) { c.Bundles[0].Image = "" }},
	} {
		t.Run(mistake.finding, func(t *testing.T) {
			fragment, err := catalog(committed, bundleImage)
			if err != nil {
				t.Fatal(err)
			}
			mistake.spoil(fragment)
			_, err = declcfg.ConvertToModel(*fragment)
			if err == nil || !strings.Contains(err.Error(), mistake.finding) {
				t.Fatalf("found %v", err)
			}
		})
	}
}
