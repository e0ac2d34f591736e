//apr:include parts

// A product of tiles of 64×64: a group has one, a lane 8×8 values of it, every eighth row and column. Sums over k run in
// ascending order. load_left and load_right, which each product has of its own, write depth ≤ 16 steps of k, of rows and columns
// beyond the last one anything. Loops that drivers would unroll without need have bounds that they do not know: some take
// minutes to compile what is unrolled.

var<workgroup> left: array<f32, 1024>;  // [k, row]
var<workgroup> right: array<f32, 1024>; // [k, column]

fn sum_tiles(group: u32, lane: u32) {
  let across = (args.n + 63u) / 64u;
  let part = part_of(group, across * ((args.m + 63u) / 64u));
  let i0 = part.tile / across * 64u;
  let j0 = part.tile % across * 64u;
  let row = lane / 8u;
  let col = lane % 8u;
  var c: array<vec4<f32>, 16>;
  for (var i = 0u; i < 16u; i++) { c[i] = vec4<f32>(0.0, 0.0, 0.0, 0.0); } // nothing else sets it
  for (var k0 = part.first; k0 < part.end; k0 += 16u) {
    let depth = min(16u, part.end - k0);
    load_left(lane, i0, k0, depth);
    load_right(lane, j0, k0, depth);
    workgroupBarrier();
    for (var k = 0u; k < depth; k++) {
      let b = 64u * k + col;
      let b0 = vec4<f32>(right[b], right[b + 8u], right[b + 16u], right[b + 24u]);
      let b1 = vec4<f32>(right[b + 32u], right[b + 40u], right[b + 48u], right[b + 56u]);
      for (var i = 0u; i < 8u; i++) {
        let a = vec4<f32>(left[64u * k + row + 8u * i]);
        c[2u * i] = fma(a, b0, c[2u * i]);
        c[2u * i + 1u] = fma(a, b1, c[2u * i + 1u]);
      }
    }
    workgroupBarrier();
  }
  // One place in the program that stores, for what LLVM makes of each of many takes seconds to compile.
  for (var q = 0u; q < min(64u, 8u * (args.m - i0)); q++) {
    let r = i0 + row + q / 8u * 8u;
    let s = j0 + col + q % 8u * 8u;
    var v = c[0];
    for (var i = 1u; i < 16u; i++) { v = select(v, c[i], q / 4u == i); }
    if (r < args.m && s < args.n) { store(part.row + r, s, v[q % 4u]); }
  }
}
