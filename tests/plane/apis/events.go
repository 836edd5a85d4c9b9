package apis

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

func addEventConversions() {
	toCore := func(in *eventsv1.Event, out *corev1.Event) {
		out.ObjectMeta = in.ObjectMeta
		out.EventTime, out.Series = in.EventTime, nil
		if in.Series != nil {
			out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
		}
		out.ReportingController, out.ReportingInstance = in.ReportingController, in.ReportingInstance
		out.Action, out.Reason, out.InvolvedObject, out.Related = in.Action, in.Reason, in.Regarding, in.Related
		out.Message, out.Type = in.Note, in.Type
		out.Source, out.FirstTimestamp, out.LastTimestamp, out.Count = in.DeprecatedSource, in.DeprecatedFirstTimestamp, in.DeprecatedLastTimestamp, in.DeprecatedCount
	}
	toEvents := func(in *corev1.Event, out *eventsv1.Event) {
		out.ObjectMeta = in.ObjectMeta
		out.EventTime, out.Series = in.EventTime, nil
		if in.Series != nil {
			out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
		}
		out.ReportingController, out.ReportingInstance = in.ReportingController, in.ReportingInstance
		out.Action, out.Reason, out.Regarding, out.Related = in.Action, in.Reason, in.InvolvedObject, in.Related
		out.Note, out.Type = in.Message, in.Type
		out.DeprecatedSource, out.DeprecatedFirstTimestamp, out.DeprecatedLastTimestamp, out.DeprecatedCount = in.Source, in.FirstTimestamp, in.LastTimestamp, in.Count
	}
	utilruntime.Must(Scheme.AddConversionFunc((*eventsv1.Event)(nil), (*corev1.Event)(nil), func(a, b any, _ conversion.Scope) error {
		toCore(a.(*eventsv1.Event), b.(*corev1.Event))
		return nil
	}))
	utilruntime.Must(Scheme.AddConversionFunc((*corev1.Event)(nil), (*eventsv1.Event)(nil), func(a, b any, _ conversion.Scope) error {
		toEvents(a.(*corev1.Event), b.(*eventsv1.Event))
		return nil
	}))
	utilruntime.Must(Scheme.AddConversionFunc((*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
		in, out := a.(*corev1.EventList), b.(*eventsv1.EventList)
		out.ListMeta = in.ListMeta
		out.Items = make([]eventsv1.Event, len(in.Items))
		for i := range in.Items {
			toEvents(&in.Items[i], &out.Items[i])
		}
		return nil
	}))
	utilruntime.Must(Scheme.AddConversionFunc((*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
		in, out := a.(*eventsv1.EventList), b.(*corev1.EventList)
		out.ListMeta = in.ListMeta
		out.Items = make([]corev1.Event, len(in.Items))
		for i := range in.Items {
			toCore(&in.Items[i], &out.Items[i])
		}
		return nil
	}))
}
