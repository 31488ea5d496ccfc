package main

import (
	"reflect"
	"sort"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// served lists the group versions whose kinds the table holds.
var served = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{corev1.SchemeGroupVersion, corev1.AddToScheme},
	{appsv1.SchemeGroupVersion, appsv1.AddToScheme},
	{batchv1.SchemeGroupVersion, batchv1.AddToScheme},
	{autoscalingv1.SchemeGroupVersion, autoscalingv1.AddToScheme},
	{autoscalingv2.SchemeGroupVersion, autoscalingv2.AddToScheme},
	{policyv1.SchemeGroupVersion, policyv1.AddToScheme},
	{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme},
	{rbacv1.SchemeGroupVersion, rbacv1.AddToScheme},
	{resourcev1.SchemeGroupVersion, resourcev1.AddToScheme},
	{storagev1.SchemeGroupVersion, storagev1.AddToScheme},
	{schedulingv1.SchemeGroupVersion, schedulingv1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
	{eventsv1.SchemeGroupVersion, eventsv1.AddToScheme},
	{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme},
	{nodev1.SchemeGroupVersion, nodev1.AddToScheme},
	{certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme},
	{admissionregistrationv1.SchemeGroupVersion, admissionregistrationv1.AddToScheme},
	{apiextensionsv1.SchemeGroupVersion, apiextensionsv1.AddToScheme},
	{apiregistrationv1.SchemeGroupVersion, apiregistrationv1.AddToScheme},
	{authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme},
	{authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme},
	{flowcontrolv1.SchemeGroupVersion, flowcontrolv1.AddToScheme},
}

// metaKinds are the kinds of meta.k8s.io that travel in bodies of every group.
var metaKinds = []runtime.Object{
	&metav1.CreateOptions{}, &metav1.DeleteOptions{}, &metav1.GetOptions{}, &metav1.ListOptions{}, &metav1.PatchOptions{},
	&metav1.UpdateOptions{}, &metav1.Status{}, &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{},
}

const metaPackage = "k8s.io/apimachinery/pkg/apis/meta/v1"

var metaVersion = schema.GroupVersion{Group: "meta.k8s.io", Version: "v1"}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, group := range served {
		if err := group.add(scheme); err != nil {
			return nil, err
		}
	}
	scheme.AddKnownTypes(metaVersion, metaKinds...)
	return scheme, nil
}

// kind is a Go type that stands for a kind of a group version.
type kind struct {
	schema.GroupVersionKind
	goType reflect.Type
}

// kinds are the kinds that belong to each served group version, in a fixed order.
func kinds(scheme *runtime.Scheme) []kind {
	var found []kind
	collect := func(version schema.GroupVersion, belongs func(reflect.Type) bool) {
		for name, goType := range scheme.KnownTypes(version) {
			if belongs(goType) {
				found = append(found, kind{version.WithKind(name), goType})
			}
		}
	}
	for _, group := range served {
		// Every group also knows the kinds of meta.k8s.io; those are told once.
		collect(group.version, func(goType reflect.Type) bool { return goType.PkgPath() != metaPackage })
	}
	collect(metaVersion, func(reflect.Type) bool { return true })
	sort.Slice(found, func(left, right int) bool { return found[left].String() < found[right].String() })
	return found
}
