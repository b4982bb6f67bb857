// Package tune chooses, by measuring, how a training runs fastest on this machine:
// plain steps, several steps in one call, the model's XLA twins, and settings of
// TensorFlow's executor and of the threads that it runs in.
//
// No single way wins. Compiled and fused steps were 4 times faster than plain ones on a
// small dense model and 8 times slower on one with dropout (docs/performance.md). So
// [Choose] runs a race: each [Candidate] trains on the first batches of the real data, in
// a child process that has opened the model from its folder, in rounds that alternate
// with those of the fastest way so far, in another child; at first that is plain steps. The
// process that trains takes no part in it. So there is no snapshot to restore, and neither
// the weights of a loser nor its memory, its threads or its compiled code stay behind; a
// candidate that crashes, hangs or needs too much memory only loses.
//
// Plain steps stay unless another way is shown to be faster: [Margin], with the whole of
// its interval. A loss that is NaN or infinite never wins.
//
// A race takes at most [Share] of the training that it is for, and at most [MaxRace]. How
// long that training is, nobody knows before it: until plain steps are measured, they
// count as no longer than [Least] says, which is less than any step takes, or what an
// earlier race or training on this machine has left in the cache. If a race does not fit
// into that, there is none. What was measured is kept in the cache for the model, the
// shapes, the options and the machine.
//
// A value flows like this: a [Plan] goes into Choose, out comes a [Choice], whose
// Candidate is applied to session.Options before the session is opened. Main calls
// [Child] first, since the processes of the race run the same program.
package tune
