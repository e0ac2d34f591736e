//apr:kernel y:rw x:r:vec4<f32> w:r:vec4<u32> bias:r | n:u32 columns:u32 team:u32 add:u32 biased:u32 lift:u32
//apr:lanes 128
//apr:include row codes

const ABREAST: u32 = 4u;

// y = w·x + bias, or added to y, of one row of x; w in Q4_K (see weight_q4_k). A piece is 32 bytes of a block: the low nibbles are
// a group of 32 columns, the high ones the group behind it. Of each a lane sums Σqx and has Σx for all rows, so that the scale
// and the minimum are multiplied once.

struct Pair { low: vec4<f32>, high: vec4<f32> }

// Four columns of both groups: a word of each row.
fn nibbles(v: vec4<u32>, near: vec4<f32>, far: vec4<f32>, s: Pair) -> Pair {
  let l = for_bytes(near);
  let h = for_bytes(far);
  let up = v >> vec4<u32>(16u);
  let l0 = fma(lifted(v & vec4<u32>(0xfu)) - 8388608.0, vec4<f32>(l.x), s.low);
  let h0 = fma(lifted(v & vec4<u32>(0xf0u)) - 8388608.0, vec4<f32>(h.x), s.high);
  let l1 = fma(lifted(v & vec4<u32>(0xf00u)) - 8388608.0, vec4<f32>(l.y), l0);
  let h1 = fma(lifted(v & vec4<u32>(0xf000u)) - 8388608.0, vec4<f32>(h.y), h0);
  let l2 = fma(lifted(up & vec4<u32>(0xfu)) - 8388608.0, vec4<f32>(l.z), l1);
  let h2 = fma(lifted(up & vec4<u32>(0xf0u)) - 8388608.0, vec4<f32>(h.z), h1);
  return Pair(fma(lifted(up & vec4<u32>(0xf00u)) - 8388608.0, vec4<f32>(l.w), l2),
    fma(lifted(up & vec4<u32>(0xf000u)) - 8388608.0, vec4<f32>(h.w), h2));
}

// 16 columns of both groups: four words of each row a, b, c, d.
fn quarter(a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>, at: u32, s: Pair) -> Pair {
  let s0 = nibbles(vec4<u32>(a.x, b.x, c.x, d.x), x[at], x[at + 8u], s);
  let s1 = nibbles(vec4<u32>(a.y, b.y, c.y, d.y), x[at + 1u], x[at + 9u], s0);
  let s2 = nibbles(vec4<u32>(a.z, b.z, c.z, d.z), x[at + 2u], x[at + 10u], s1);
  return nibbles(vec4<u32>(a.w, b.w, c.w, d.w), x[at + 3u], x[at + 11u], s2);
}

// Σx of 32 columns.
fn plain(at: u32) -> f32 {
  return added(((x[at] + x[at + 1u]) + (x[at + 2u] + x[at + 3u])) + ((x[at + 4u] + x[at + 5u]) + (x[at + 6u] + x[at + 7u])));
}

fn row_sums(row: u32, member: u32) -> vec4<f32> {
  let rows = rows_at(row);
  var s = vec4<f32>();
  for (var i = member; i < args.columns / 64u; i += args.team) {
    let p = i % 4u;
    let head = rows + i / 4u * 9u;
    let code = head + 1u + 2u * p;
    let ha = w[head.x];
    let hb = w[head.y];
    let hc = w[head.z];
    let hd = w[head.w];
    let a0 = w[code.x];
    let b0 = w[code.y];
    let c0 = w[code.z];
    let d0 = w[code.w];
    let a1 = w[code.x + 1u];
    let b1 = w[code.y + 1u];
    let c1 = w[code.z + 1u];
    let d1 = w[code.w + 1u];
    let at = args.x_at / 4u + 16u * i;
    let q = quarter(a1, b1, c1, d1, at + 4u, quarter(a0, b0, c0, d0, at, Pair()));

    let shift = vec4<u32>(16u * (p % 2u)); // two scales and two minima, in bytes
    let scales = vec4<u32>(ha.y, hb.y, hc.y, hd.y) >> shift;
    let minima = vec4<u32>(ha.z, hb.z, hc.z, hd.z) >> shift;
    let rest = vec4<u32>(ha.w, hb.w, hc.w, hd.w) >> shift;
    let upper = p >= 2u;
    let two = vec4<u32>(2u);
    let e = select(scales & vec4<u32>(0x3f3fu), (rest & vec4<u32>(0x0f0fu)) | ((scales >> two) & vec4<u32>(0x3030u)), upper);
    let f = select(minima & vec4<u32>(0x3f3fu),
      ((rest >> vec4<u32>(4u)) & vec4<u32>(0x0f0fu)) | ((minima >> two) & vec4<u32>(0x3030u)), upper);
    let ds = vec4<u32>(ha.x, hb.x, hc.x, hd.x);
    let scale = halves(ds);
    let least = halves(ds >> vec4<u32>(16u));
    let near = (lifted(e & vec4<u32>(0xffu)) - 8388608.0) * scale;
    let far = (lifted(e & vec4<u32>(0xff00u)) - 8388608.0) * 0.000244140625 * scale; // 1/256, and 1/16 for high nibbles
    let near_least = (lifted(f & vec4<u32>(0xffu)) - 8388608.0) * least;
    let far_least = (lifted(f & vec4<u32>(0xff00u)) - 8388608.0) * 0.00390625 * least;
    s += fma(near, q.low, far * q.high) - fma(near_least, vec4<f32>(plain(at)), far_least * plain(at + 8u));
  }
  return s;
}

fn run(group: u32, lane: u32) { sum_row(group, lane); }
