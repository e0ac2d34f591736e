// The functions of the language err as their drivers like; these err by about a unit everywhere.

// e^x. Below −103 it is 0, above 88.72 infinite: with x = k·ln 2 + r, |r| ≤ ½ ln 2, a polynomial of r times 2^k, in two
// factors because 2^k alone may be no float32.
fn exp_(x: f32) -> f32 {
  if (!(x > -103.0)) { return select(0.0, x, x != x); }
  let k = floor(fma(min(x, 89.0), 1.44269504, 0.5));
  var r = fma(k, -0.693359375, min(x, 89.0));
  r = fma(k, 2.12194440e-4, r);
  var p = 1.9875691500e-4;
  p = fma(p, r, 1.3981999507e-3);
  p = fma(p, r, 8.3334519073e-3);
  p = fma(p, r, 4.1665795894e-2);
  p = fma(p, r, 1.6666665459e-1);
  p = fma(p, r, 5.0000001201e-1);
  p = fma(p * r, r, r) + 1.0;
  let half = i32(k) / 2;
  let rest = i32(k) - half;
  return p * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(rest + 127) << 23u);
}

// ln x of a positive normal number: with x = 2^e·m, ½√2 ≤ m < √2.
fn log_(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  var e = f32(i32(b >> 23u) - 126);
  var m = bitcast<f32>((b & 0x007fffffu) | 0x3f000000u);
  if (m < 0.70710678) { e -= 1.0; m = m + m - 1.0; } else { m -= 1.0; }
  let z = m * m;
  var y = 7.0376836292e-2;
  y = fma(y, m, -1.1514610310e-1);
  y = fma(y, m, 1.1676998740e-1);
  y = fma(y, m, -1.2420140846e-1);
  y = fma(y, m, 1.4249322787e-1);
  y = fma(y, m, -1.6668057665e-1);
  y = fma(y, m, 2.0000714765e-1);
  y = fma(y, m, -2.4999993993e-1);
  y = fma(y, m, 3.3333331174e-1);
  y = y * m * z;
  y = fma(e, -2.12194440e-4, y);
  y = fma(z, -0.5, y);
  return fma(e, 0.693359375, m + y);
}

// tanh x, by a polynomial near 0 and by e^2x elsewhere.
fn tanh_(x: f32) -> f32 {
  let a = abs(x);
  if (a < 0.625) {
    let z = x * x;
    var p = -5.70498872745e-3;
    p = fma(p, z, 2.06390887954e-2);
    p = fma(p, z, -5.37397155531e-2);
    p = fma(p, z, 1.33314422036e-1);
    p = fma(p, z, -3.33332819422e-1);
    return fma(p * z, x, x);
  }
  let t = 1.0 - 2.0 / (exp_(min(2.0 * a, 40.0)) + 1.0);
  return select(t, -t, x < 0.0);
}
