// Package prune cuts a student out of a teacher: fewer layers, a narrower residual stream, fewer neurons, query heads
// and experts. What stays keeps the teacher's weights.
//
// Measure runs the teacher once over text and says how much each part matters. With x the residual stream, means over
// positions:
//
//	layer i     1 − cos(x before, x behind)
//	channel c   Σ over the norms of the residual stream of mean |norm(x)_c|
//	neuron j    mean |a_j|, a being what the down projection reads
//	head h      mean ‖a_c·n_c, c in h‖, a being what the output projection reads, n_c the norm of its column c
//	            (a head that it ignores does not matter)
//	expert e    the sum of its weights where the router chose it
//
// Choose keeps the most important parts, in their order; query heads within the group that shares keys and values, of
// which each keeps the same number. One choice of channels holds for the whole residual stream: embedding, head, all
// norms, and the residual side of all projections. A width that is cut is another number under the mean of a norm, so
// norms are rescaled:
//
//	w' = w·√(s·H/H'),  s the kept part of Σ x², mean over positions
//
// which gives what the teacher computes if the channels that go were zero.
//
// Apply makes an opened model the cut one: its tensors are rows and columns of the teacher's, read when they are
// asked for.
//
// Caveats. Heads of keys and values, of a Gated DeltaNet, and widths of heads and of experts stay.
package prune
