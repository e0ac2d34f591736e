//apr:kernel dq:rw do_:r lse:r delta:r q:r k:r v:r first:r:i32 | queries:u32 offset:u32 key_rows:u32 heads:u32 shared_by:u32 dim:u32 window:u32 scale:f32 cap:f32 documents:u32 sunk:u32
//apr:include exp scores

// dq = ds·k, ds = p∘(do·vᵀ − delta)·scale·slope, p = e^(t−lse). A group has a query of a head; tiles of 64 keys, one a lane.

var<workgroup> query: array<f32, 512>;
var<workgroup> grad: array<f32, 512>;
var<workgroup> ds: array<f32, 64>;

fn run(group: u32, lane: u32) {
  let head = group % args.heads;
  let row = group / args.heads;
  let b = row / args.queries;
  let own = args.offset + row % args.queries;
  let low = lowest(row, own);
  for (var c = lane; c < args.dim; c += 64u) {
    query[c] = q[args.q_at + row * args.q_row + head * args.dim + c];
    grad[c] = do_[args.do__at + row * args.do__row + head * args.dim + c];
  }
  workgroupBarrier();
  let shared_head = head / args.shared_by * args.dim;
  let first_key = args.k_at + b * args.key_rows * args.k_row + shared_head;
  let first_value = args.v_at + b * args.key_rows * args.v_row + shared_head;
  let whole = lse[args.lse_at + row * args.lse_row + head];
  let mean = delta[args.delta_at + row * args.delta_row + head];
  let alone = low == own && args.sunk == 0u; // p is 1 whatever the score
  var out: array<f32, 8>;
  for (var i = 0u; i < 8u; i++) { out[i] = 0.0; } // nothing else sets it
  for (var tile = low; tile <= own; tile += 64u) {
    var g = 0.0;
    if (tile + lane <= own && !alone) {
      let at = first_key + (tile + lane) * args.k_row;
      let value = first_value + (tile + lane) * args.v_row;
      var s = 0.0;
      var dp = 0.0;
      for (var c = 0u; c < args.dim; c++) {
        s = fma(query[c], k[at + c], s);
        dp = fma(grad[c], v[value + c], dp);
      }
      let t = capped(s * args.scale);
      g = exp_(t - whole) * (dp - mean) * args.scale * slope(t);
    }
    ds[lane] = g;
    workgroupBarrier();
    let n = min(64u, own + 1u - tile);
    for (var i = 0u; i < 8u; i++) {
      let c = lane + 64u * i;
      if (c < args.dim) {
        var sum = out[i];
        for (var j = 0u; j < n; j++) { sum = fma(ds[j], k[first_key + (tile + j) * args.k_row + c], sum); }
        out[i] = sum;
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < 8u; i++) {
    let c = lane + 64u * i;
    if (c < args.dim) { dq[args.dq_at + row * args.dq_row + head * args.dim + c] = out[i]; }
  }
}
