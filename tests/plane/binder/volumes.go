package binder

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listersv1 "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
)

const (
	wrongNodeForVolume = "node(s) didn't match PersistentVolume's node affinity"
	noVolumeToBind     = "node(s) didn't find available persistent volumes to bind"
	claimInUse         = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
	noProvisioner      = "kubernetes.io/no-provisioner"
)

// storage looks up what a pod's claims are about.
type storage struct {
	claims  listersv1.PersistentVolumeClaimLister
	pvs     listersv1.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// podVolumes are the volumes that a pod's claims are bound to, the claims that
// get one with the pod's node, and those that no two pods may mount.
type podVolumes struct {
	bound   []*corev1.PersistentVolume
	waiting []*corev1.PersistentVolumeClaim
	onePod  []string
}

// volumes are those of the pod's claims. The error is why no node can help: a
// claim that is missing, or one that should be bound and is not.
func (s *storage) volumes(pod *corev1.Pod) (podVolumes, error) {
	var out podVolumes
	claims, err := s.claimsOf(pod)
	if err != nil {
		return out, err
	}
	for _, claim := range claims {
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			out.onePod = append(out.onePod, claim.Name)
		}
		if claim.Spec.VolumeName == "" {
			if waits, err := volume.IsDelayBindingMode(claim, s.classes); err != nil {
				return out, err
			} else if waits {
				out.waiting = append(out.waiting, claim)
				continue
			}
		}
		if claim.Spec.VolumeName == "" || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
			return out, fmt.Errorf("pod has unbound immediate PersistentVolumeClaims")
		}
		pv, err := s.pvs.Get(claim.Spec.VolumeName)
		if err != nil {
			return out, err
		}
		out.bound = append(out.bound, pv)
	}
	return out, nil
}

// findsVolume says whether a claim gets a volume on the node: one that is there
// and free, or a new one. How large one is does not matter here.
func (s *storage) findsVolume(claim *corev1.PersistentVolumeClaim, node *corev1.Node) bool {
	class, err := s.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return false
	}
	pvs, err := s.pvs.List(labels.Everything())
	if err != nil {
		return false
	}
	for _, pv := range pvs {
		of := pv.Spec.ClaimRef
		free := of == nil || of.Namespace == claim.Namespace && of.Name == claim.Name
		if free && pv.Spec.StorageClassName == class.Name && volume.CheckNodeAffinity(pv, node.Labels) == nil {
			return true
		}
	}
	return class.Provisioner != noProvisioner && allows(class.AllowedTopologies, node)
}

func allows(topologies []corev1.TopologySelectorTerm, node *corev1.Node) bool {
	return len(topologies) == 0 || slices.ContainsFunc(topologies, func(term corev1.TopologySelectorTerm) bool {
		wrong := func(r corev1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(r.Values, node.Labels[r.Key])
		}
		return len(term.MatchLabelExpressions) > 0 && !slices.ContainsFunc(term.MatchLabelExpressions, wrong)
	})
}

func (s *storage) claimsOf(pod *corev1.Pod) ([]*corev1.PersistentVolumeClaim, error) {
	var claims []*corev1.PersistentVolumeClaim
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := s.claims.PersistentVolumeClaims(pod.Namespace).Get(v.PersistentVolumeClaim.ClaimName)
		switch {
		case err != nil:
			return nil, err
		case claim.Status.Phase == corev1.ClaimLost:
			return nil, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Errorf("persistentvolumeclaim %q is being deleted", claim.Name)
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// reachesVolumes holds the node affinity of volumes (plugin VolumeBinding). The
// switch refuse answers in its words.
func reachesVolumes(q *question, n *nodeState) *refusal {
	if q.pins != nil && q.switches.refuses(q.pod.Namespace, n.node.Name) {
		return never(wrongNodeForVolume)
	}
	for _, pv := range q.volumes.bound {
		if volume.CheckNodeAffinity(pv, n.node.Labels) != nil {
			return never(wrongNodeForVolume)
		}
	}
	for _, claim := range q.volumes.waiting {
		if !q.state.storage.findsVolume(claim, n.node) {
			return never(noVolumeToBind)
		}
	}
	return nil
}

// mountsAlone holds that no pod that has a node mounts a claim that one pod at a
// time may mount (plugin VolumeRestrictions), wherever it is.
func mountsAlone(q *question, _ *nodeState) *refusal {
	if q.claimInUse() {
		return no(claimInUse)
	}
	return nil
}

func findClaimInUse(q *question) bool {
	if len(q.volumes.onePod) == 0 {
		return false
	}
	for _, n := range q.state.order {
		for other := range q.podsOn(n) {
			if other.UID != q.pod.UID && other.Namespace == q.pod.Namespace && slices.ContainsFunc(other.Spec.Volumes, q.volumes.wantsAlone) {
				return true
			}
		}
	}
	return false
}

func (v *podVolumes) wantsAlone(mounted corev1.Volume) bool {
	claim := mounted.PersistentVolumeClaim
	return claim != nil && slices.Contains(v.onePod, claim.ClaimName)
}
