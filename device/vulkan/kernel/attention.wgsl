//apr:kernel o:rw lse:rw q:r k:r v:r first:r:i32 sinks:r | queries:u32 keys:u32 offset:u32 key_rows:u32 heads:u32 shared_by:u32 dim:u32 window:u32 scale:f32 cap:f32 documents:u32 kept:u32 sunk:u32
//apr:include exp reduce scores

// o = softmax(cap(scale·q·kᵀ), masked, sink)·v. A group has a query of a head. Every lane first finds the largest score of
// every 64th key and its sum of exponentials; then tiles of 64 keys go through shared memory, a lane summing every 64th column.

var<workgroup> query: array<f32, 512>;
var<workgroup> weights: array<f32, 64>;

fn score(key: u32) -> f32 {
  var s = 0.0;
  for (var c = 0u; c < args.dim; c++) { s = fma(query[c], k[key + c], s); }
  return capped(s * args.scale);
}

fn run(group: u32, lane: u32) {
  let head = group % args.heads;
  let row = group / args.heads;
  let b = row / args.queries;
  let own = args.offset + row % args.queries;
  let low = lowest(row, own);
  for (var c = lane; c < args.dim; c += 64u) { query[c] = q[args.q_at + row * args.q_row + head * args.dim + c]; }
  workgroupBarrier();
  let shared_head = head / args.shared_by * args.dim;
  let first_key = args.k_at + b * args.key_rows * args.k_row + shared_head;
  let first_value = args.v_at + b * args.key_rows * args.v_row + shared_head;

  var top = -3.0e38;
  var sum = 0.0;
  for (var j = low + lane; j <= own; j += 64u) {
    let s = score(first_key + j * args.k_row);
    if (s > top) {
      sum = sum * exp_(top - s) + 1.0;
      top = s;
    } else {
      sum += exp_(s - top);
    }
  }
  var most = largest(lane, top);
  var sink = 0.0;
  if (args.sunk != 0u) {
    sink = sinks[args.sinks_at + head];
    most = max(most, sink);
  }
  var all = total(lane, sum * exp_(top - most));
  if (args.sunk != 0u) { all += exp_(sink - most); }
  if (args.kept != 0u && lane == 0u) { lse[args.lse_at + row * args.lse_row + head] = most + log_(all); }

  var out: array<f32, 8>;
  for (var i = 0u; i < 8u; i++) { out[i] = 0.0; } // nothing else sets it
  for (var tile = low; tile <= own; tile += 64u) {
    var p = 0.0;
    if (tile + lane <= own) { p = exp_(score(first_key + (tile + lane) * args.k_row) - most); }
    weights[lane] = p;
    workgroupBarrier();
    let n = min(64u, own + 1u - tile);
    for (var i = 0u; i < 8u; i++) {
      let c = lane + 64u * i;
      if (c < args.dim) {
        var s = out[i];
        for (var j = 0u; j < n; j++) { s = fma(weights[j], v[first_value + (tile + j) * args.v_row + c], s); }
        out[i] = s;
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < 8u; i++) {
    let c = lane + 64u * i;
    if (c < args.dim) { o[args.o_at + row * args.o_row + head * args.dim + c] = out[i] / all; }
  }
}
