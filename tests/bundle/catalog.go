package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/property"
	"github.com/operator-framework/operator-registry/pkg/image"
	"github.com/operator-framework/operator-registry/pkg/registry"
	"github.com/sirupsen/logrus"
)

// catalogFile is the name of the fragment beside the folders of the bundle. The image of the bundle does not contain it.
const catalogFile = "catalog.yaml"

// writeCatalog writes the fragment of a file-based catalog for the bundle in the folder, which has this image.
func writeCatalog(folder, image string) error {
	fragment, err := catalog(folder, image)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(folder, catalogFile))
	if err != nil {
		return err
	}
	defer file.Close()
	return declcfg.WriteYAML(*fragment, file)
}

// catalog returns package, channel and bundle as `opm render` writes them.
func catalog(folder, bundleImage string) (*declcfg.DeclarativeConfig, error) {
	bundle, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		return nil, err
	}
	logrus.SetLevel(logrus.WarnLevel) // The parser reports absent optional files as information.
	input, err := registry.NewImageInput(image.SimpleReference(""), folder)
	if err != nil {
		return nil, err
	}
	_, properties, err := registry.ObjectsAndPropertiesFromBundle(input.Bundle)
	if err != nil {
		return nil, err
	}
	// Catalogs have the metadata of the CSV instead of all objects.
	properties = slices.DeleteFunc(properties, func(p property.Property) bool { return p.Type == property.TypeBundleObject })
	properties = append(properties, property.MustBuildCSVMetadata(*bundle.CSV))

	csv, channel := bundle.CSV, input.Bundle.Annotations.DefaultChannelName
	rendered := declcfg.Bundle{Schema: declcfg.SchemaBundle, Name: csv.Name, Package: bundle.Package, Image: bundleImage, Properties: properties}
	for _, related := range csv.Spec.RelatedImages {
		rendered.RelatedImages = append(rendered.RelatedImages, declcfg.RelatedImage{Name: related.Name, Image: related.Image})
	}
	rendered.RelatedImages = append(rendered.RelatedImages, declcfg.RelatedImage{Image: rendered.Image})
	icon, err := json.Marshal(csv.Spec.Icon[0])
	if err != nil {
		return nil, err
	}
	about := declcfg.Package{Schema: declcfg.SchemaPackage, Name: bundle.Package, DefaultChannel: channel, Description: csv.Annotations["description"]}
	if err := json.Unmarshal(icon, &about.Icon); err != nil {
		return nil, err
	}
	fragment := &declcfg.DeclarativeConfig{
		Packages: []declcfg.Package{about},
		Channels: []declcfg.Channel{{
			Schema: declcfg.SchemaChannel, Name: channel, Package: bundle.Package,
			Entries: []declcfg.ChannelEntry{{Name: csv.Name, Replaces: csv.Spec.Replaces, SkipRange: csv.Annotations["olm.skipRange"]}},
		}},
		Bundles: []declcfg.Bundle{rendered},
	}
	_, err = declcfg.ConvertToModel(*fragment)
	return fragment, err
}
