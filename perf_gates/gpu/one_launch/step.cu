// One decode step of Mamba2-2.7B for one row as one launch: an experiment, measured by `python -m perf_gates.gpu.one_launch`.
//
// One program a multiprocessor, all resident. A producer thread copies the weights and states that the program owns through a
// ring in shared memory, in the order in which they are used; it waits for room only, never for a result. Ten warps follow the
// chain of dependencies:
//
//   A   p = W_in v, in the order B C dt | x | S | z        v: the normed residual stream             (1)
//   B   convolution and recurrence of the program's channels, between x and z; g = norm weight y silu(z)   (2)
//   C   h += W_out g, v' = norm weight h                                                             (3)
//
// Programs exchange v, B C dt and g by words in global memory that hold a value and the number of the layer that wrote it, so
// that reading a word is waiting for it: no barrier of the grid, no fence. A norm's factor is applied to the sums of the next
// product; the squares travel with the values.
//
// Layouts: W (o, k) bf16 as checkpoints store it; S (layer, channel, n) fp32; window (2, layer, 3, c), read [parity], written
// [1 - parity]. No headers: NVRTC compiles it alone.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int D = 2560, INNER = 5120, HEADS = 80, P = 64, N = 128, CONV = INNER + 2 * N, OUT = INNER + CONV + HEADS;
constexpr int WARPS = 10, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
constexpr int STAGES = 20, STAGE = 10240;              // places of the ring; warp w owns those with slot % WARPS == w
constexpr int ROW_IN = 2 * D, ROW_OUT = 2 * INNER;     // bytes of a row of weights: half a stage, a stage
constexpr long long GIVE_UP = 1ll << 28;               // cycles that a wait may take: 0.14 s
static_assert(STAGES % WARPS == 0, "a warp must own the same places in every round: a parity tells one round from the next only");

struct Share { int quad0, quad1, early0, early1, out0, out1, head0, head1; };   // what a program owns; a quad: 4 channels
struct Pair { u64 x, y; };

struct Model {
  const u8 *W_in, *W_out, *W_head;
  const float *norm, *norm_last, *norm_gate, *taps, *bias, *A, *skip, *dt_bias;
  float *S, *window;
  const float *h0;
  u64 *v, *early;            // (D): bf16 and epoch, square; (2 N + HEADS): value, epoch
  Pair *g;                   // (INNER / 4): 4 bf16; square, epoch
  float *logits;
  u32 *failed;               // pinned host memory, 8 words a program: what a wait that gave up says
  const Share *shares;
  int layers, parity, flight;    // flight: copies that may be under way at once
  int mode;                      // 0 the step; 1 words are not waited for; 2 no weights, the chain alone; 3 the stream alone
  u32 epoch;                     // of the first layer; grows by layers + 1 a step
};

__device__ __forceinline__ u32 shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(u64 *b) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(b)) : "memory"); }
__device__ __forceinline__ void barrier_expect(u64 *b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u64 *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(b)) : "memory"); }
__device__ __forceinline__ bool barrier_done(u64 *b, u32 parity) {
  u32 ok;
  asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0, 1, 0, q; }"
               : "=r"(ok) : "r"(shared(b)), "r"(parity) : "memory");
  return ok;
}
__device__ __noinline__ void give_up(volatile u32 *failed, u32 place, u32 detail) {
  volatile u32 *f = failed + 8 * blockIdx.x;
  if (f[0] == 0) f[1] = detail, f[2] = threadIdx.x, f[0] = place, __threadfence_system();
  for (int i = 0; i < 1000; i++) __nanosleep(1000);    // the others say theirs
  __trap();
}
enum Place { ROOM = 1, DATA, STATES, FLIGHT, ACTIVATIONS, EARLY, GATED };
__device__ __forceinline__ void barrier_wait(u64 *b, u32 parity, const Model &m, Place place, u32 detail) {
  if (barrier_done(b, parity)) return;
  for (long long start = clock64(); !barrier_done(b, parity);)
    if (clock64() - start > GIVE_UP) give_up(m.failed, place, detail);
}
__device__ __forceinline__ void sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ u32 bf16(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }
__device__ __forceinline__ float total(float x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
// Asked for here, though used much later: the compiler may not move it down.
__device__ __forceinline__ float ahead(const float *p) { float v; asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p)); return v; }
__device__ __forceinline__ float4 ahead4(const float *p) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// Words. A word of 16 bytes is read and written whole (ld.b128 with a scope).
__device__ __forceinline__ Pair read(const Pair *p) {
  Pair v;
  asm volatile("{ .reg .b128 t; ld.relaxed.gpu.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void write(Pair *p, u64 x, u64 y) {
  asm volatile("{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.gpu.global.b128 [%0], t; }" ::"l"(p), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ u64 read(const u64 *p) { u64 v; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ void write(u64 *p, u32 lo, u32 hi) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"((u64)lo | (u64)hi << 32) : "memory");
}
// COUNT words a thread, asked for together; those that are late are asked for again.
template <int COUNT, typename Word, typename Late>
__device__ __forceinline__ void await(const Word *const (&at)[COUNT], Word (&w)[COUNT], const Model &m, Place place, Late late) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) w[i] = read(at[i]);
  for (const long long start = clock64(); m.mode != 1;) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < COUNT; i++) any |= late(w[i]);
    if (!any) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++) if (late(w[i])) w[i] = read(at[i]);
    if (clock64() - start > GIVE_UP) give_up(m.failed, place, 0);
  }
}
__device__ __forceinline__ u32 lo32(u64 x) { return (u32)x; }
__device__ __forceinline__ u32 hi32(u64 x) { return (u32)(x >> 32); }

struct Ring { u8 *data; u64 *full, *empty; };

// Copies everything that a program owns, stage by stage.
__device__ void produce(const Ring &ring, const Share &own, const Model &m) {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  u32 slot = 0, parity = 1, far = STAGES - m.flight, far_parity = 1;   // far: the place `flight` copies back
  auto send = [&](const void *from_, int bytes) {
    const u8 *from = (const u8 *)from_;
    for (; bytes > 0; bytes -= STAGE, from += STAGE) {
      const int size = min(STAGE, bytes);
      barrier_wait(&ring.empty[slot], parity, m, ROOM, slot);
      if (m.flight < STAGES) barrier_wait(&ring.full[far], far_parity, m, FLIGHT, far);
      if (++far == STAGES) far = 0, far_parity ^= 1;
      barrier_expect(&ring.full[slot], size);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                   ::"r"(shared(ring.data + slot * STAGE)), "l"(from), "r"(size), "r"(shared(&ring.full[slot])), "l"(policy) : "memory");
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
  };
  const int quads = own.quad1 - own.quad0;
  for (int l = 0; l < m.layers; l++) {
    const u8 *W = m.W_in + (long)l * OUT * ROW_IN;
    send(W + (long)(2 * INNER + own.early0) * ROW_IN, (own.early1 - own.early0) * ROW_IN);
    send(W + (long)(INNER + 4 * own.quad0) * ROW_IN, 4 * quads * ROW_IN);
    send(m.S + ((long)l * INNER + 4 * own.quad0) * N, 16 * quads * N);
    send(W + (long)4 * own.quad0 * ROW_IN, 4 * quads * ROW_IN);
    send(m.W_out + ((long)l * D + own.out0) * ROW_OUT, (own.out1 - own.out0) * ROW_OUT);
  }
  send(m.W_head + (long)own.head0 * ROW_IN, (own.head1 - own.head0) * ROW_IN);
}

// Rows [r0, r1) times the activations, which are in registers; lane 0 hands row r to `put`. `at`: the first stage.
template <int K16, bool PACKED, typename Acts, typename Put>
__device__ __forceinline__ void product(const Ring &ring, u32 &at, int r0, int r1, const Acts &act, const Model &m, Put put) {
  constexpr int WIDTH = K16 * 512, ROWS = STAGE / WIDTH;       // bytes of a row; rows of a stage
  const u32 count = (r1 - r0 + ROWS - 1) / ROWS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (u32 s = (warp + WARPS - at % WARPS) % WARPS; s < count; s += WARPS) {
    const u32 i = at + s, slot = i % STAGES;
    float sums[ROWS][2] = {};
    if (m.mode != 2) {
      barrier_wait(&ring.full[slot], (i / STAGES) & 1, m, DATA, i);
      const u8 *base = ring.data + slot * STAGE;
#pragma unroll
      for (int j = 0; j < K16; j++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const uint4 w = *reinterpret_cast<const uint4 *>(base + r * WIDTH + (j * 32 + lane) * 16);
          const u32 ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int q = 0; q < 4; q++) {
            float a, b;
            if constexpr (PACKED) a = low(act[4 * j + q]), b = high(act[4 * j + q]);
            else a = act[8 * j + 2 * q], b = act[8 * j + 2 * q + 1];
            sums[r][0] = fmaf(low(ws[q]), a, sums[r][0]), sums[r][1] = fmaf(high(ws[q]), b, sums[r][1]);
          }
        }
      __syncwarp();
      if (lane == 0) barrier_arrive(&ring.empty[slot]);        // free before the sums are reduced
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float y = total(sums[r][0] + sums[r][1]);
      const int row = r0 + s * ROWS + r;
      if (lane == 0 && row < r1) put(row, y);
    }
  }
  at += count;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) step(const __grid_constant__ Model m) {
  extern __shared__ __align__(128) u8 memory[];
  u8 *acts = memory + STAGES * STAGE;                          // INNER bf16
  float *bc = (float *)(acts + ROW_OUT), *part = bc + 2 * N, *hs = part + 12, *next = hs + 24, *xs = next + 24, *zs = xs + 40;
  Ring ring{memory, (u64 *)(zs + 40), (u64 *)(zs + 40) + STAGES};
  const int t = threadIdx.x, warp = t / 32, lane = t % 32, c = blockIdx.x;
  const Share own = m.shares[c];
  const int quads = own.quad1 - own.quad0, outs = own.out1 - own.out0;
  if (t < STAGES) barrier_init(&ring.full[t]), barrier_init(&ring.empty[t]);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  if (warp == WARPS) {
    if (lane == 0 && m.mode != 2) produce(ring, own, m);
    return;
  }
  u32 at = 0;
  if (m.mode == 3) {
    const u32 all = m.layers * ((own.early1 - own.early0 + 1) / 2 + 4 * quads + 2 + outs) + (own.head1 - own.head0 + 1) / 2;
    for (u32 i = warp; i < all; i += WARPS) {
      barrier_wait(&ring.full[i % STAGES], (i / STAGES) & 1, m, DATA, i);
      __syncwarp();
      if (lane == 0) barrier_arrive(&ring.empty[i % STAGES]);
    }
    return;
  }
  auto put_v = [&](int r, float h, float weight, u32 epoch) { write(m.v + r, bf16(weight * h) | epoch << 16, __float_as_uint(h * h)); };
  if (t < outs) hs[t] = m.h0[own.out0 + t], put_v(own.out0 + t, hs[t], m.norm[own.out0 + t], m.epoch);
  // Sum of a value of each thread, over the program; everybody gets it.
  auto summed = [&](float x) {
    x = total(x);
    if (lane == 0) part[warp] = x;
    sync();
    x = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) x += part[i];
    return x;
  };
  const bool mine = lane < 4 && warp < quads;                  // this lane owns a channel
  const int row = mine ? 4 * (own.quad0 + warp) + lane : 0, head = row / P, of_bc = t < 2 * N ? t : 0, ch = INNER + of_bc;

  for (int l = 0; l <= m.layers; l++) {
    const u32 epoch = m.epoch + l;
    const int k = min(l, m.layers - 1);
    const float *old = m.window + ((long)m.parity * m.layers + k) * 3 * CONV, *bias = m.bias + (long)k * CONV;
    float *fresh = m.window + ((long)(1 - m.parity) * m.layers + k) * 3 * CONV;
    const float b0 = ahead(old + ch), b1 = ahead(old + CONV + ch), b2 = ahead(old + 2 * CONV + ch), bb = ahead(bias + ch);
    const float x0 = ahead(old + row), x1 = ahead(old + CONV + row), x2 = ahead(old + 2 * CONV + row), xb = ahead(bias + row);
    const float4 bt = ahead4(m.taps + 4 * ((long)k * CONV + ch)), xt = ahead4(m.taps + 4 * ((long)k * CONV + row));
    const float A = ahead(m.A + k * HEADS + head), skip = ahead(m.skip + k * HEADS + head), shift = ahead(m.dt_bias + k * HEADS + head);
    const float weight = ahead(m.norm_gate + (long)k * INNER + row);
    const float follows = ahead((l + 1 < m.layers ? m.norm + (long)(l + 1) * D : m.norm_last) + min(own.out0 + t, D - 1));

    // A
    float square = 0.f;
    {
      const Pair *words[4];
      Pair w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) words[i] = (const Pair *)m.v + i * CONSUMERS + t;
      await(words, w, m, ACTIVATIONS, [&](const Pair &p) { return ((u32)(p.x >> 16) ^ epoch) & 0xffff || ((u32)(p.y >> 16) ^ epoch) & 0xffff; });
#pragma unroll
      for (int i = 0; i < 4; i++) {
        ((u32 *)acts)[i * CONSUMERS + t] = (lo32(w[i].x) & 0xffff) | lo32(w[i].y) << 16;
        square += __uint_as_float(hi32(w[i].x)) + __uint_as_float(hi32(w[i].y));
      }
    }
    const float factor = rsqrtf(summed(square) / D + 1e-5f);
    float act[80];
#pragma unroll
    for (int j = 0; j < 10; j++) {
      const uint4 a = ((const uint4 *)acts)[j * 32 + lane];
      const u32 as[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int q = 0; q < 4; q++) act[8 * j + 2 * q] = low(as[q]), act[8 * j + 2 * q + 1] = high(as[q]);
    }
    if (l == m.layers) {
      product<10, false>(ring, at, own.head0, own.head1, act, m, [&](int r, float y) { m.logits[r] = y * factor; });
      break;
    }
    product<10, false>(ring, at, own.early0, own.early1, act, m, [&](int r, float y) { write(m.early + r, __float_as_uint(y * factor), epoch); });
    product<10, false>(ring, at, 0, 4 * quads, act, m, [&](int r, float y) { xs[r] = y * factor; });
    const u64 *const words[2] = {m.early + of_bc, m.early + 2 * N + head};
    u64 got[2];
    await(words, got, m, EARLY, [&](u64 w) { return hi32(w) != epoch; });
    if (t < 2 * N) {
      const float new_bc = __uint_as_float(lo32(got[0]));
      bc[t] = silu(bb + bt.x * b0 + bt.y * b1 + bt.z * b2 + bt.w * new_bc);
      if (c == gridDim.x - 1) fresh[ch] = b1, fresh[CONV + ch] = b2, fresh[2 * CONV + ch] = new_bc;
    }
    if (t < outs) next[t] = follows;
    float dt = __uint_as_float(lo32(got[1])) + shift;
    dt = dt > 20.f ? dt : log1pf(__expf(dt));
    sync();

    // B
    const u32 i0 = at + warp / 5, slot = i0 % STAGES;          // five warps read a stage of states
    at += 2;
    if (m.mode != 2) barrier_wait(&ring.full[slot], (i0 / STAGES) & 1, m, STATES, i0);
    const float new_x = mine ? xs[4 * warp + lane] : 0.f;
    const float x = silu(xb + xt.x * x0 + xt.y * x1 + xt.z * x2 + xt.w * new_x), decay = __expf(dt * A), dx = dt * x;
    float y = 0.f;
    float4 S[4];
#pragma unroll
    for (int i = 0; i < 4; i++) S[i] = ((const float4 *)(ring.data + slot * STAGE + (warp % 5) * 16 * N))[i * 32 + lane];
    asm volatile("bar.sync %0, 160;" ::"r"(2 + warp / 5) : "memory");
    if (warp % 5 == 0 && lane == 0 && m.mode != 2) barrier_arrive(&ring.empty[slot]);
    if (warp < quads) {
      const float4 B = ((const float4 *)bc)[lane], C = ((const float4 *)bc)[N / 4 + lane];
      float4 *to = (float4 *)(m.S + ((long)l * INNER + 4 * (own.quad0 + warp)) * N);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float a = __shfl_sync(~0u, decay, i), e = __shfl_sync(~0u, dx, i);
        S[i].x = fmaf(a, S[i].x, e * B.x), S[i].y = fmaf(a, S[i].y, e * B.y);
        S[i].z = fmaf(a, S[i].z, e * B.z), S[i].w = fmaf(a, S[i].w, e * B.w);
        const float sum = total(fmaf(S[i].x, C.x, S[i].y * C.y) + fmaf(S[i].z, C.z, S[i].w * C.w));
        if (lane == i) y = sum;
        __stcs(to + i * 32 + lane, S[i]);
      }
      if (mine) fresh[row] = x1, fresh[CONV + row] = x2, fresh[2 * CONV + row] = new_x;
    }
    y += skip * x;
    product<10, false>(ring, at, 0, 4 * quads, act, m, [&](int r, float z) { zs[r] = z * factor; });
    sync();
    if (warp < quads) {
      const float gated = mine ? y * silu(zs[4 * warp + lane]) : 0.f;
      u32 g = bf16(gated * weight);
      square = gated * gated;
      square += __shfl_xor_sync(~0u, square, 1), square += __shfl_xor_sync(~0u, square, 2);
      g |= __shfl_xor_sync(~0u, g, 1) << 16;
      const u32 upper = __shfl_xor_sync(~0u, g, 2);
      if (lane == 0) write(m.g + own.quad0 + warp, (u64)g | (u64)upper << 32, (u64)__float_as_uint(square) | (u64)epoch << 32);
    }

    // C
    square = 0.f;
    {
      const Pair *words[4];
      Pair w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) words[i] = m.g + i * CONSUMERS + t;
      await(words, w, m, GATED, [&](const Pair &p) { return hi32(p.y) != epoch; });
#pragma unroll
      for (int i = 0; i < 4; i++) ((u64 *)acts)[i * CONSUMERS + t] = w[i].x, square += __uint_as_float(lo32(w[i].y));
    }
    const float factor_g = rsqrtf(summed(square) / INNER + 1e-5f);
    u32 packed[80];
#pragma unroll
    for (int j = 0; j < 20; j++) {
      const uint4 a = ((const uint4 *)acts)[j * 32 + lane];
      packed[4 * j] = a.x, packed[4 * j + 1] = a.y, packed[4 * j + 2] = a.z, packed[4 * j + 3] = a.w;
    }
    product<20, true>(ring, at, own.out0, own.out1, packed, m, [&](int r, float sum) {
      const float h = hs[r - own.out0] + sum * factor_g;
      hs[r - own.out0] = h, put_v(r, h, next[r - own.out0], epoch + 1);
    });
    sync();                                                    // acts, part and hs are written again
  }
}
