package binder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listersv1 "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
)

const wrongNodeForVolume = "node(s) didn't match PersistentVolume's node affinity"

// storage looks up what a pod's claims are about.
type storage struct {
	claims  listersv1.PersistentVolumeClaimLister
	pvs     listersv1.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// volumes are those that the pod's claims are bound to. The error is why no node
// can help: a claim that is missing, or one that should be bound and is not.
func (s *storage) volumes(pod *corev1.Pod) ([]*corev1.PersistentVolume, error) {
	claims, err := s.claimsOf(pod)
	if err != nil {
		return nil, err
	}
	var bound []*corev1.PersistentVolume
	for _, claim := range claims {
		if claim.Spec.VolumeName == "" {
			if waits, err := volume.IsDelayBindingMode(claim, s.classes); err != nil {
				return nil, err
			} else if waits {
				continue
			}
		}
		if claim.Spec.VolumeName == "" || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
			return nil, fmt.Errorf("pod has unbound immediate PersistentVolumeClaims")
		}
		pv, err := s.pvs.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, err
		}
		bound = append(bound, pv)
	}
	return bound, nil
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
	for _, pv := range q.volumes {
		if volume.CheckNodeAffinity(pv, n.node.Labels) != nil {
			return never(wrongNodeForVolume)
		}
	}
	return nil
}
