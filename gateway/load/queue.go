// SPDX-License-Identifier: Apache-2.0

package load

// queue has who is due first at its head. It implements heap.Interface.
type queue []*item

// Len implements sort.Interface.
func (q queue) Len() int { return len(q) }

// Less implements sort.Interface.
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }

// Swap implements sort.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	it, ok := x.(*item)
	if !ok {
		panic("BUG: load: something else than an item is pushed")
	}
	it.at = len(*q)
	*q = append(*q, it)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	it.at = -1
	return it
}
