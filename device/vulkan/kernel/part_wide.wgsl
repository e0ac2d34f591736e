//apr:include parts

// A product of tiles of 128×128: a group of 256 lanes has one, a lane 8×8 values of it, four rows and four columns in each
// quarter. Sums over k run in ascending order, as those of part_gemm. fetch_left and fetch_right, which each product has of
// its own, return 8 values of a lane in the next 16 steps of k, 0 beyond the last step, and put_left and put_right say where
// they belong: the next tiles are on their way while these are multiplied. Groups go down 8 tiles before they go right, so that
// those at work at a time share what they read.

struct Eight { a: vec4<f32>, b: vec4<f32> }

const PITCH: u32 = 33u; // vectors between steps of k: 32 of four values, and one so that lanes write to different banks

var<workgroup> left: array<vec4<f32>, 528>;  // [k, row]
var<workgroup> right: array<vec4<f32>, 528>; // [k, column]

fn sum_wide(group: u32, lane: u32) {
  let across = (args.n + 127u) / 128u;
  let tall = (args.m + 127u) / 128u;
  let part = part_of(group, across * tall);
  let band = part.tile / (8u * across);
  let high = min(8u, tall - 8u * band);
  let within = part.tile - 8u * band * across;
  let i0 = 128u * (8u * band + within % high);
  let j0 = 128u * (within / high);
  let row = lane / 16u;
  let col = lane % 16u;
  var c0 = vec4<f32>();
  var c1 = vec4<f32>();
  var c2 = vec4<f32>();
  var c3 = vec4<f32>();
  var c4 = vec4<f32>();
  var c5 = vec4<f32>();
  var c6 = vec4<f32>();
  var c7 = vec4<f32>();
  var d0 = vec4<f32>();
  var d1 = vec4<f32>();
  var d2 = vec4<f32>();
  var d3 = vec4<f32>();
  var d4 = vec4<f32>();
  var d5 = vec4<f32>();
  var d6 = vec4<f32>();
  var d7 = vec4<f32>();
  var l = fetch_left(lane, i0, part.first);
  var r = fetch_right(lane, j0, part.first);
  for (var k0 = part.first; k0 < part.end; k0 += 16u) {
    put_left(lane, l);
    put_right(lane, r);
    workgroupBarrier();
    if (k0 + 16u < part.end) {
      l = fetch_left(lane, i0, k0 + 16u);
      r = fetch_right(lane, j0, k0 + 16u);
    }
    for (var k = 0u; k < 16u; k++) {
      let a = left[PITCH * k + row];
      let e = left[PITCH * k + row + 16u];
      let b = right[PITCH * k + col];
      let f = right[PITCH * k + col + 16u];
      c0 = fma(vec4<f32>(a.x), b, c0);
      c1 = fma(vec4<f32>(a.y), b, c1);
      c2 = fma(vec4<f32>(a.z), b, c2);
      c3 = fma(vec4<f32>(a.w), b, c3);
      c4 = fma(vec4<f32>(e.x), b, c4);
      c5 = fma(vec4<f32>(e.y), b, c5);
      c6 = fma(vec4<f32>(e.z), b, c6);
      c7 = fma(vec4<f32>(e.w), b, c7);
      d0 = fma(vec4<f32>(a.x), f, d0);
      d1 = fma(vec4<f32>(a.y), f, d1);
      d2 = fma(vec4<f32>(a.z), f, d2);
      d3 = fma(vec4<f32>(a.w), f, d3);
      d4 = fma(vec4<f32>(e.x), f, d4);
      d5 = fma(vec4<f32>(e.y), f, d5);
      d6 = fma(vec4<f32>(e.z), f, d6);
      d7 = fma(vec4<f32>(e.w), f, d7);
    }
    workgroupBarrier();
  }
  // One place in the program that stores, as in part_gemm.
  for (var q = 0u; q < min(16u, 2u * (args.m - i0)); q++) {
    let i = q / 2u;
    let r = i0 + 4u * row + i % 4u + i / 4u * 64u;
    let s = j0 + 4u * col + q % 2u * 64u;
    var v = c0;
    v = select(v, c1, q == 2u);
    v = select(v, c2, q == 4u);
    v = select(v, c3, q == 6u);
    v = select(v, c4, q == 8u);
    v = select(v, c5, q == 10u);
    v = select(v, c6, q == 12u);
    v = select(v, c7, q == 14u);
    v = select(v, d0, q == 1u);
    v = select(v, d1, q == 3u);
    v = select(v, d2, q == 5u);
    v = select(v, d3, q == 7u);
    v = select(v, d4, q == 9u);
    v = select(v, d5, q == 11u);
    v = select(v, d6, q == 13u);
    v = select(v, d7, q == 15u);
    if (r < args.m) {
      for (var u = 0u; u < 4u; u++) {
        if (s + u < args.n) { store(part.row + r, s + u, v[u]); }
      }
    }
  }
}
