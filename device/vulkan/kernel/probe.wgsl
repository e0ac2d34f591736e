//apr:kernel y:rw x:r | n:u32
//apr:include bits exp reduce

// Known answers, of what compilers and drivers have been seen to get wrong: variables of inner loops begin anew, lanes see
// what others wrote to shared memory, bit operations, shifts of negative numbers, e^x far below zero, finiteness.
// A group writes 8 sums of each lane of x.

fn run(group: u32, lane: u32) {
  let v = x[args.x_at + group * 64u + lane];
  var nested = 0.0;
  for (var i = 0u; i < 4u; i++) {
    var inner = 0.0;
    for (var j = 0u; j <= i; j++) { inner += v; }
    nested += inner;
  }
  lanes[lane] = v;
  workgroupBarrier();
  let other = lanes[63u - lane];
  workgroupBarrier();
  let all = total(lane, v);
  let most = largest(lane, v);
  let word = bitcast<u32>(i32(v) * 257 - 5);
  let bits = f32(i32(word << 16u) >> 20u) + f32(countOneBits(word & 0xf0f0u));
  let at = args.y_at + (group * 64u + lane) * 8u;
  y[at] = nested;
  y[at + 1u] = other;
  y[at + 2u] = all;
  y[at + 3u] = most;
  y[at + 4u] = bits;
  y[at + 5u] = exp_(-v * 1000.0 - 200.0) + exp_(v * -0.125);
  y[at + 6u] = log_(v + 1.0) + tanh_(v);
  y[at + 7u] = select(0.0, 1.0, finite(v)) + select(0.0, 2.0, spoiled(nan())) + select(0.0, 4.0, spoiled(v));
}
