package main

import (
	"log"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queuePeer answers "cycle QUEUE KEYS ROUNDS" with the nanoseconds of one add, get and done in the best round, and
// "overtaken KEYS" with how many later arrivals client-go serves before a key that was added again while it ran.
func queuePeer(arguments []string) any {
	if len(arguments) == 4 && arguments[0] == "cycle" {
		keys := requests(number(arguments[2]))
		return map[string]float64{"nanoseconds": cycle(newQueue(arguments[1]), keys, number(arguments[3]))}
	}
	if len(arguments) == 2 && arguments[0] == "overtaken" {
		return map[string]int{"keys": overtaken(newQueue("client-go"), requests(number(arguments[1])))}
	}
	log.Fatalf("usage: peers queue cycle QUEUE KEYS ROUNDS | overtaken KEYS")
	return nil
}

type queue interface {
	Add(reconcile.Request)
	Get() (reconcile.Request, bool)
	Done(reconcile.Request)
	ShutDown()
}

// Neither queue counts anything here, as ours does not: the measured work is the queueing alone.
func newQueue(name string) queue {
	switch name {
	case "client-go":
		return workqueue.NewTyped[reconcile.Request]()
	case "controller-runtime":
		return priorityqueue.New[reconcile.Request]("peer", func(options *priorityqueue.Opts[reconcile.Request]) {
			options.MetricProvider = uncounted{}
		})
	}
	log.Fatalf("no queue named %q", name)
	return nil
}

func cycle(queue queue, keys []reconcile.Request, rounds int) float64 {
	defer queue.ShutDown()
	best := time.Duration(1<<63 - 1)
	for range rounds {
		started := time.Now()
		for _, key := range keys {
			queue.Add(key)
		}
		for range keys {
			key, _ := queue.Get()
			queue.Done(key)
		}
		best = min(best, time.Since(started))
	}
	return float64(best.Nanoseconds()) / float64(len(keys))
}

func overtaken(queue queue, later []reconcile.Request) int {
	defer queue.ShutDown()
	again := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "again", Name: "again"}}
	queue.Add(again)
	queue.Get()
	queue.Add(again)
	for _, key := range later {
		queue.Add(key)
	}
	queue.Done(again)
	for served := 0; ; served++ {
		key, _ := queue.Get()
		queue.Done(key)
		if key == again {
			return served
		}
	}
}

func requests(count int) []reconcile.Request {
	keys := make([]reconcile.Request, count)
	for index := range keys {
		name := types.NamespacedName{Namespace: "namespace-" + strconv.Itoa(index%10), Name: "name-" + strconv.Itoa(index)}
		keys[index] = reconcile.Request{NamespacedName: name}
	}
	return keys
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 {
		log.Fatalf("%q is no count", text)
	}
	return value
}

// uncounted is a provider of metrics that keep nothing.
type uncounted struct{}

func (uncounted) Inc()            {}
func (uncounted) Dec()            {}
func (uncounted) Set(float64)     {}
func (uncounted) Observe(float64) {}

func (uncounted) NewDepthMetric(string) workqueue.GaugeMetric            { return uncounted{} }
func (uncounted) NewAddsMetric(string) workqueue.CounterMetric           { return uncounted{} }
func (uncounted) NewLatencyMetric(string) workqueue.HistogramMetric      { return uncounted{} }
func (uncounted) NewWorkDurationMetric(string) workqueue.HistogramMetric { return uncounted{} }
func (uncounted) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return uncounted{}
}
func (uncounted) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return uncounted{}
}
func (uncounted) NewRetriesMetric(string) workqueue.CounterMetric { return uncounted{} }
