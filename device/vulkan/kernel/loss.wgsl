//apr:kernel out:rw grad:rw z:r t:r targets:r:i32 faults:rw:u32 | n:u32 limit:u32 kind:u32 taught:u32 graded:u32 ce:f32 d:f32 inv_t:f32 cap:f32 beta:f32 dp:f32 dq:f32 hlog:f32 hp:f32 hq:f32
//apr:include bits exp reduce faults

// The distillation loss of a row: out[row] = CE, D, the teacher's entropy, and 1 where both have the same first maximum; grad =
// ce·(softmax(z) − e_y) + d·G, multiplied by the slope of the soft-cap. kind 0 is forward KL, 1 reverse KL, 2 total variation,
// 3 a divergence from a mixture. A group has a row and goes over it four times: maxima, sums, D, gradient; nothing is kept. grad
// may be z.
//
// With dz = z−max z and dt = t−max t: Z1 = Σe^dz, ZT = Σe^(dz/T), S = Σe^(dt/T), A = ΣS-terms·(dt−dz), E = ΣS-terms·dt. −∞ is
// taken for −10³⁰, so that no infinity is computed with.

const PIECE: u32 = 1024u; // sums of so many columns are added to the others as one

var<workgroup> places: array<u32, 64>;

fn student(row: u32, c: u32, top: f32) -> f32 { return max(z[args.z_at + row * args.z_row + c], -1.0e30) - top; }
fn teacher(row: u32, c: u32, top: f32) -> f32 { return max(t[args.t_at + row * args.t_row + c], -1.0e30) - top; }

// The first column with the largest value, of those that lanes found.
fn first_place(lane: u32, top: f32, at: u32) -> u32 {
  lanes[lane] = top;
  places[lane] = at;
  workgroupBarrier();
  var best = lanes[0];
  var place = places[0];
  for (var i = 1u; i < 64u; i++) {
    if (lanes[i] > best || (lanes[i] == best && places[i] < place)) {
      best = lanes[i];
      place = places[i];
    }
  }
  workgroupBarrier();
  return place;
}

// What a column adds to D (x) and to Σh (y, which is h), of the probabilities p of the teacher and q of the student, r = ln p/q.
fn term(p: f32, q: f32, r: f32) -> vec2<f32> {
  switch (args.kind) {
    case 1u: {
      var v = 0.0;
      if (q != 0.0) { v = -q * r; }
      return vec2<f32>(v, v);
    }
    case 2u: {
      var h = 0.0;
      if (q > p) { h = 0.5 * q; }
      if (q < p) { h = -0.5 * q; }
      return vec2<f32>(0.5 * abs(p - q), h);
    }
    default: {
      let e = exp_(-abs(r));
      var big = args.beta + (1.0 - args.beta) * e;
      var share = e;
      if (!(r > 0.0)) {
        big = (1.0 - args.beta) + args.beta * e;
        share = 1.0;
      }
      let l = log_(big);
      share /= big;
      let p_mix = min(r, 0.0) - l;
      let q_mix = min(-r, 0.0) - l;
      var d = 0.0;
      var h = 0.0;
      if (p != 0.0) {
        d += args.dp * p * p_mix;
        h += args.hp * p * share;
      }
      if (q != 0.0) {
        d += args.dq * q * q_mix;
        h += args.hlog * q * q_mix + args.hq * q * share;
      }
      return vec2<f32>(d, h);
    }
  }
}

fn run(group: u32, lane: u32) {
  let row = group;
  let y = targets[args.targets_at + row];
  if (y < 0 || u32(y) >= args.limit) { note(4u, y); return; }
  let zy = z[args.z_at + row * args.z_row + u32(y)];
  var top = -3.4e38;
  var top_t = -3.4e38;
  var at = 0u;
  var at_t = 0u;
  var bad = 0.0;
  var bad_t = 0.0;
  for (var c = lane; c < args.n; c += 64u) {
    let v = z[args.z_at + row * args.z_row + c];
    if (spoiled(v)) { bad = 1.0; }
    if (v > top) { top = v; at = c; }
    if (args.taught != 0u) {
      let u = t[args.t_at + row * args.t_row + c];
      if (spoiled(u)) { bad_t = 1.0; }
      if (u > top_t) { top_t = u; at_t = c; }
    }
  }
  let mz = largest(lane, top);
  bad = largest(lane, bad);
  var mt = 0.0;
  var agree = 0.0;
  if (args.taught != 0u) {
    mt = largest(lane, top_t);
    bad_t = largest(lane, bad_t);
    if (first_place(lane, top, at) == first_place(lane, top_t, at_t)) { agree = 1.0; }
  }

  var z1 = 0.0;
  var zt = 0.0;
  var s = 0.0;
  var a = 0.0;
  var e = 0.0;
  for (var c0 = 0u; c0 < args.n; c0 += PIECE) {
    var sums = vec4<f32>();
    var wide = 0.0;
    for (var c = c0 + lane; c < min(c0 + PIECE, args.n); c += 64u) {
      let dz = student(row, c, mz);
      sums.x += exp_(dz);
      if (args.taught != 0u) {
        let dt = teacher(row, c, mt);
        wide += exp_(dz * args.inv_t);
        let p = exp_(dt * args.inv_t);
        if (p != 0.0) {
          sums.y += p;
          sums.z += p * (dt - dz);
          sums.w += p * dt;
        }
      }
    }
    z1 += sums.x;
    zt += wide;
    s += sums.y;
    a += sums.z;
    e += sums.w;
  }
  z1 = total(lane, z1);
  var ce = (mz - zy) + log_(z1);
  var d = 0.0;
  var entropy = 0.0;
  var all_h = 0.0;
  var ratio = 0.0;
  if (args.taught != 0u) {
    zt = total(lane, zt);
    s = total(lane, s);
    a = total(lane, a);
    e = total(lane, e);
    ratio = log_(zt) - log_(s);
    entropy = log_(s) - e * args.inv_t / s;
    if (args.kind == 0u) {
      d = a * args.inv_t / s + ratio;
    } else {
      var h = 0.0;
      for (var c0 = 0u; c0 < args.n; c0 += PIECE) {
        var sums = vec2<f32>();
        for (var c = c0 + lane; c < min(c0 + PIECE, args.n); c += 64u) {
          let dz = student(row, c, mz);
          let dt = teacher(row, c, mt);
          sums += term(exp_(dt * args.inv_t) / s, exp_(dz * args.inv_t) / zt, (dt - dz) * args.inv_t + ratio);
        }
        d += sums.x;
        h += sums.y;
      }
      d = total(lane, d);
      all_h = total(lane, h);
    }
  }
  if (bad != 0.0) { ce = nan(); }
  if (bad + bad_t != 0.0) { d = nan(); entropy = nan(); }
  if (lane == 0u) {
    let o = args.out_at + row * args.out_row;
    out[o] = ce;
    out[o + 1u] = d;
    out[o + 2u] = entropy;
    out[o + 3u] = agree;
  }
  if (args.graded == 0u) { return; }
  for (var c = lane; c < args.n; c += 64u) {
    let raw = z[args.z_at + row * args.z_row + c];
    let dz = student(row, c, mz);
    var g = args.ce / z1 * exp_(dz);
    if (args.taught != 0u) {
      let q = exp_(dz * args.inv_t);
      let dt = teacher(row, c, mt);
      let p = exp_(dt * args.inv_t);
      if (args.kind == 0u) {
        g += args.d / zt * q - args.d / s * p;
      } else {
        g += args.d * (term(p / s, q / zt, (dt - dz) * args.inv_t + ratio).y - q / zt * all_h);
      }
    }
    if (c == u32(y)) { g -= args.ce; }
    if (args.cap > 0.0) { g *= (1.0 - raw / args.cap) * (1.0 + raw / args.cap); }
    if (bad + bad_t != 0.0) { g = nan(); }
    grad[args.grad_at + row * args.grad_row + c] = g;
  }
}
