//apr:kernel dk:rw dv:rw do_:r lse:r delta:r q:r k:r v:r first:r:i32 | queries:u32 keys:u32 offset:u32 key_rows:u32 heads:u32 shared_by:u32 dim:u32 window:u32 scale:f32 cap:f32 documents:u32 sunk:u32
//apr:include exp scores

// dv = pᵀ·do and dk = dsᵀ·q, with p and ds as in dq. A group has a key of a key/value head; for each query head that reads it
// tiles of 64 queries, one a lane, in ascending order.

var<workgroup> key: array<f32, 512>;
var<workgroup> value: array<f32, 512>;
var<workgroup> ds: array<f32, 64>;
var<workgroup> ps: array<f32, 64>;

fn run(group: u32, lane: u32) {
  let kv_heads = args.heads / args.shared_by;
  let kv_head = group % kv_heads;
  let b = group / kv_heads / args.keys;
  let j = group / kv_heads % args.keys;
  let key_row = b * args.key_rows + j;
  for (var c = lane; c < args.dim; c += 64u) {
    key[c] = k[args.k_at + key_row * args.k_row + kv_head * args.dim + c];
    value[c] = v[args.v_at + key_row * args.v_row + kv_head * args.dim + c];
  }
  workgroupBarrier();
  var first_query = 0u;
  if (j > args.offset) { first_query = j - args.offset; }
  var end = args.queries;
  if (args.window > 0u) { // query i sees key j while j > offset + i − window
    end = min(end, max(j + args.window, args.offset) - args.offset);
  }
  var out_k: array<f32, 8>;
  var out_v: array<f32, 8>;
  for (var i = 0u; i < 8u; i++) { // nothing else sets them
    out_k[i] = 0.0;
    out_v[i] = 0.0;
  }
  for (var h = 0u; h < args.shared_by; h++) {
    let column = (kv_head * args.shared_by + h) * args.dim;
    for (var tile = first_query; tile < end; tile += 64u) {
      let i = tile + lane;
      var p = 0.0;
      var g = 0.0;
      if (i < end) {
        let row = b * args.queries + i;
        let own = args.offset + i;
        let low = lowest(row, own);
        if (j >= low) {
          let qs = args.q_at + row * args.q_row + column;
          let dos = args.do__at + row * args.do__row + column;
          var s = 0.0;
          var dp = 0.0;
          for (var c = 0u; c < args.dim; c++) {
            s = fma(key[c], q[qs + c], s);
            dp = fma(value[c], do_[dos + c], dp);
          }
          let head = kv_head * args.shared_by + h;
          let t = capped(s * args.scale);
          p = exp_(t - lse[args.lse_at + row * args.lse_row + head]);
          if (low < own || args.sunk != 0u) { g = p * (dp - delta[args.delta_at + row * args.delta_row + head]) * args.scale * slope(t); }
        }
      }
      ps[lane] = p;
      ds[lane] = g;
      workgroupBarrier();
      let n = min(64u, end - tile);
      for (var u = 0u; u < 8u; u++) {
        let c = lane + 64u * u;
        if (c < args.dim) {
          var sk = out_k[u];
          var sv = out_v[u];
          for (var m = 0u; m < n; m++) {
            let row = b * args.queries + tile + m;
            sk = fma(ds[m], q[args.q_at + row * args.q_row + column + c], sk);
            sv = fma(ps[m], do_[args.do__at + row * args.do__row + column + c], sv);
          }
          out_k[u] = sk;
          out_v[u] = sv;
        }
      }
      workgroupBarrier();
    }
  }
  for (var u = 0u; u < 8u; u++) {
    let c = lane + 64u * u;
    if (c < args.dim) {
      dk[args.dk_at + key_row * args.dk_row + kv_head * args.dim + c] = out_k[u];
      dv[args.dv_at + key_row * args.dv_row + kv_head * args.dim + c] = out_v[u];
    }
  }
}
