// Command bundle validates bundles for the Operator Lifecycle Manager with operator-framework's own validators. Arguments are
// folders; each holds one bundle. A warning fails the command, like an error. With -image, the command then writes the fragment of a
// file-based catalog, which names that image of the bundle, into each folder.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// All validators of bundles except:
// - OperatorHub and CommunityOperator, which upstream has deprecated,
// - AlphaDeprecatedAPIs, whose check OperatorHubV2 runs,
// - MultipleArchitectures, which inspects published images with docker.
var validators = validation.DefaultBundleValidators.WithValidators(
	validation.GoodPracticesValidator,
	validation.ObjectValidator,
	validation.OperatorHubV2Validator,
	validation.StandardCapabilitiesValidator,
	validation.StandardCategoriesValidator,
)

func main() {
	image := flag.String("image", "", "write "+catalogFile+", which names this image of the bundle, into each folder")
	flag.Parse()
	failed := flag.NArg() == 0
	for _, folder := range flag.Args() {
		found, err := validate(folder)
		if err == nil && *image != "" {
			err = writeCatalog(folder, *image)
		}
		if err != nil {
			found = append(found, err.Error())
		}
		for _, finding := range found {
			fmt.Fprintf(os.Stderr, "%s: %s\n", folder, finding)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// validate returns all errors and warnings of the validators.
func validate(folder string) ([]string, error) {
	bundle, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		return nil, err
	}
	internal, err := internalKinds(bundle.CSV)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, finding := range result.Errors {
			found = append(found, finding.Error())
		}
		for _, finding := range result.Warnings {
			// The only warning about a kind is that it has no example. An internal kind has none, because no user creates its objects.
			if kind, ok := finding.BadValue.(schema.GroupVersionKind); !ok || !internal[kind] {
				found = append(found, finding.Error())
			}
		}
	}
	return found, nil
}

// internalKinds returns the kinds that consoles hide.
func internalKinds(csv *v1alpha1.ClusterServiceVersion) (map[schema.GroupVersionKind]bool, error) {
	const annotation = "operators.operatorframework.io/internal-objects"
	var names []string
	if err := json.Unmarshal([]byte(csv.Annotations[annotation]), &names); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", annotation, err)
	}
	kinds := map[schema.GroupVersionKind]bool{}
	for _, owned := range csv.Spec.CustomResourceDefinitions.Owned {
		_, group, _ := strings.Cut(owned.Name, ".")
		kind := schema.GroupVersionKind{Group: group, Version: owned.Version, Kind: owned.Kind}
		kinds[kind] = slices.Contains(names, owned.Name)
	}
	return kinds, nil
}
