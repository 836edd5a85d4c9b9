package binder

import "container/heap"

// waiting is a pod in the queue.
type waiting struct {
	key      string // namespace/name
	priority int32
	turn     int64 // of its arrival
}

// queue orders pods by priority, then by arrival.
type queue struct {
	items  waitingHeap
	queued map[string]bool
	turn   int64
}

func newQueue() *queue { return &queue{queued: map[string]bool{}} }

func (q *queue) push(key string, priority int32) {
	if q.queued[key] {
		return
	}
	q.queued[key] = true
	q.turn++
	heap.Push(&q.items, waiting{key, priority, q.turn})
}

func (q *queue) pop() waiting {
	w := heap.Pop(&q.items).(waiting)
	delete(q.queued, w.key)
	return w
}

type waitingHeap []waiting

func (h waitingHeap) Len() int { return len(h) }
func (h waitingHeap) Less(i, j int) bool {
	if h[i].priority != h[j].priority {
		return h[i].priority > h[j].priority
	}
	return h[i].turn < h[j].turn
}
func (h waitingHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *waitingHeap) Push(x any)   { *h = append(*h, x.(waiting)) }
func (h *waitingHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
