/* FlashRel's C ABI and the reference manual of every argument.
 *
 * One operator: paged, variable-length, grouped-query attention with a learned, banded relative bias.
 *
 *     q_pos  = i + kv_len - q_len                       query row i of a sequence; the last row is the newest key
 *     dist   = q_pos - j                                key j of the same sequence
 *     score  = softmax_scale * dot(q[i,h], k[j, h / group]) + bias(i, h, dist)
 *     out    = sum_j softmax_j(score | visible(dist)) * v[j, h / group]
 *     lse    = ln sum_j exp(score)                      natural logarithm, float32
 *
 *     visible(dist):  causal           -> dist >= 0
 *                     window_left >= 0 -> dist <= window_left
 *                     window_right >= 0 -> -dist <= window_right          (-1 = unlimited)
 *     index = dist + rel_zero
 *     bias  = L[i,h,index] where 0 <= index < rel_extent; elsewhere 0 (edge "zero") or the nearest entry of L (edge "clamp")
 *     L     = rel_logits[i,h,:]                         mode logits: the caller's table
 *           = rel_scale[i] * sum_e rel[i,h,e] * rel_proj[e,:]    mode fused: never written to memory
 *           = absent                                    mode none
 *
 * Rows without a visible key (kv_len 0, q_len > kv_len) give out = 0 and lse = -inf. Memory that no visible key needs may
 * hold anything. Every function returns a code and throws nothing; flashrel_last_error() has the sentence.
 * This file compiles as C99 and later, and as C++. */
#ifndef FLASHREL_FLASHREL_H
#define FLASHREL_FLASHREL_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FLASHREL_API __declspec(dllexport)
#else
#define FLASHREL_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHREL_VERSION_MAJOR 0
#define FLASHREL_VERSION_MINOR 1
#define FLASHREL_VERSION_PATCH 0

/* ---------------------------------------------------------------- codes */

typedef enum flashrel_code {
  FLASHREL_OK = 0,
  FLASHREL_INVALID_ARGUMENT = 1, /* an argument breaks the contract: nothing was launched or written */
  FLASHREL_UNSUPPORTED = 2,      /* the arguments are legal, but the forced backend or route cannot serve them */
  FLASHREL_WORKSPACE = 3,        /* the workspace is missing, too small or misaligned */
  FLASHREL_RUNTIME = 4           /* the CUDA runtime or the operating system reported an error */
} flashrel_code;

/* The sentence of this thread's last failed call: the argument's name, what was found, what was expected.
 * Valid until this thread's next call. Empty after a call that succeeded. Never NULL. */
FLASHREL_API const char* flashrel_last_error(void);

/* "0.1.0" */
FLASHREL_API const char* flashrel_version(void);

/* ---------------------------------------------------------------- tensors */

typedef enum flashrel_dtype {
  FLASHREL_FLOAT32 = 0,
  FLASHREL_FLOAT16 = 1,
  FLASHREL_BFLOAT16 = 2,
  FLASHREL_INT32 = 3
} flashrel_dtype;

#define FLASHREL_MAX_RANK 4

/* A view of memory that the caller owns. data == NULL with rank 0 means "absent".
 * Strides count elements, may be any 64-bit number, and must be 1 in the last dimension of a floating-point tensor
 * of rank >= 2 (dimensions of size 1 may carry any stride). */
typedef struct flashrel_tensor {
  void* data;
  int32_t dtype; /* flashrel_dtype */
  int32_t rank;  /* 0 ... FLASHREL_MAX_RANK */
  int64_t shape[FLASHREL_MAX_RANK];
  int64_t stride[FLASHREL_MAX_RANK];
} flashrel_tensor;

typedef enum flashrel_memory { FLASHREL_HOST = 0, FLASHREL_CUDA = 1 } flashrel_memory;

/* Memory for a schedule that several calls share. The caller sets data and bytes; flashrel_schedule sets key. */
typedef struct flashrel_schedule_buffer {
  void* data;   /* in args->memory, 256-byte aligned */
  size_t bytes; /* at least flashrel_schedule_bytes */
  uint64_t key; /* names the plan that the schedule was made for */
} flashrel_schedule_buffer;

typedef enum flashrel_edge { FLASHREL_EDGE_ZERO = 0, FLASHREL_EDGE_CLAMP = 1 } flashrel_edge;

/* ---------------------------------------------------------------- attention */

/* Arguments of one call. Start from flashrel_attention_args_init. Every tensor lives in the memory named by `memory`;
 * nothing is ever moved between memories. n_tokens, n_seqs, ... below are read from the shapes.
 *
 * Tensors (dtype T is one of bfloat16, float16, and on the host float32; the same T for q, k_cache, v_cache and out):
 *   q             (n_tokens, n_q_heads, head_dim)               T
 *   k_cache       (n_pages, page_size, n_kv_heads, head_dim)    T; n_q_heads is a multiple of n_kv_heads
 *   v_cache       (n_pages, page_size, n_kv_heads, head_dim)    T; its own strides: K and V may be halves of one tensor
 *   block_table   (n_seqs, max_pages)                           int32; entry p of row b holds keys [p, p+1) * page_size of
 *                                                               sequence b; entries past kv_len are never used
 *   cache_seqlens (n_seqs)                                      int32; kv_len; 0 is legal
 *   cu_seqlens_q  (n_seqs + 1)                                  int32; prefix sum from 0; q_len 0 is legal; rows of out and
 *                                                               lse past cu_seqlens_q[n_seqs] are left untouched
 *   rel_logits    (n_tokens, n_q_heads, rel_extent)             bfloat16, float16 or float32; token stride 0 broadcasts
 *   rel           (n_tokens, n_q_heads, d_rel)                  T
 *   rel_proj      (d_rel, rel_extent)                           T
 *   rel_scale     (n_tokens)                                    float32, optional factor of the fused bias
 *   out           (n_tokens, n_q_heads, head_dim)               T; written; may not overlap an input
 *   lse           (n_tokens, n_q_heads)                         float32, optional, any strides; written
 * Give rel_logits (mode logits), or rel and rel_proj (mode fused), or neither (mode none).
 *
 * Limits: head_dim 1...512 (a backend may serve fewer), lengths below 2^30, memory offsets 64-bit. */
typedef struct flashrel_attention_args {
  size_t struct_size; /* sizeof(flashrel_attention_args); fields past it are taken as zero */
  int32_t memory;     /* flashrel_memory */
  int32_t device;     /* CUDA device ordinal; -1 = the current one; ignored for host memory */

  flashrel_tensor q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q;
  flashrel_tensor rel_logits, rel, rel_proj, rel_scale;
  flashrel_tensor out, lse;

  int64_t max_seqlen_q; /* upper bound of q_len in this call and in replays of it; -1 = n_tokens */
  int64_t max_seqlen_k; /* upper bound of kv_len; -1 = max_pages * page_size */

  double softmax_scale; /* multiplies q.k only, never the bias; finite */
  int32_t causal;       /* 0 or 1 */
  int32_t rel_edge;     /* flashrel_edge */
  int64_t window_left;  /* -1 = unlimited; (511, 0) = 512 keys, the row's own included */
  int64_t window_right; /* -1 = unlimited */
  int64_t rel_zero;     /* added to dist before indexing; 0 unless the table has signed distances */

  int32_t num_splits;    /* 0 = automatic; n = at most n key ranges a row; the answer is the same up to rounding */
  int32_t deterministic; /* 1 = a sequence's bits do not depend on its neighbours in the batch */
  int32_t validate;      /* host memory only. A run always checks the lengths; 1 = page numbers too, and when sizing */
  const char* backend;   /* NULL or "auto", or a name from flashrel_info; a forced backend that cannot serve is an error */
  const char* route;     /* NULL or "auto", "score_mod", "sheared" (mode logits), "fused" (mode fused) */

  const flashrel_schedule_buffer* schedule; /* NULL: the call makes its own; else what flashrel_schedule made */
} flashrel_attention_args;

/* Fills the defaults: no tensors, causal, no window, softmax_scale NaN (the caller must set it), bounds -1, the rest 0.
 * struct_size is the caller's sizeof(flashrel_attention_args); nothing past it is written. */
FLASHREL_API void flashrel_attention_args_init(flashrel_attention_args* args, size_t struct_size);

/* Workspace of the call, in bytes. Depends on shapes, strides, alignment, bounds and options, never on device memory. */
FLASHREL_API flashrel_code flashrel_attention_workspace(const flashrel_attention_args* args, size_t* bytes);

/* Runs the operator. `workspace` lives in args->memory, is 256-byte aligned, and its contents do not matter; it may be
 * shared by calls on one stream. `stream` is a cudaStream_t (ignored for host memory).
 * CUDA: asynchronous, no allocation, no synchronisation, safe in a CUDA graph: a replay after lengths, tables and data
 * changed in place is right as long as the bounds hold. Same inputs and same plan give the same bits.
 * On any error nothing is launched and nothing is written. */
FLASHREL_API flashrel_code flashrel_attention(const flashrel_attention_args* args, void* workspace, size_t workspace_bytes,
                                              void* stream);

/* The schedule: which CTA or thread takes which rows and keys. It depends on cu_seqlens_q, cache_seqlens, block_table, shapes,
 * bounds, masks and options, not on the data, so the layers of one kind in one step of a model can share it:
 *
 *     flashrel_schedule(&args, &buffer, stream);      once a step, after the lengths are there
 *     args.schedule = &buffer;                        then one flashrel_attention a layer
 *
 * Takes the arguments of the calls that will share it (args->schedule is ignored) and touches none of their outputs.
 * A call refuses a buffer that was made for another plan; that lengths and table have not changed since is the caller's
 * duty. Calls that share a buffer must not overlap in time. In a CUDA graph both functions may be captured: a replay makes
 * the schedule of its own lengths. A call with a shared schedule needs a smaller workspace.
 * On Hopper a decode call with a shared schedule may begin before the kernel in front of it on the stream has ended, and reads
 * block_table, lengths, rel_proj and all keys but the q_len newest of each sequence early (all else, those keys and q included,
 * it reads and writes after that kernel). So these must not be written by a kernel right before the call that itself lets its
 * successor start early (programmatic dependent launch); other kernels and copies are no concern. */
FLASHREL_API flashrel_code flashrel_schedule_bytes(const flashrel_attention_args* args, size_t* bytes);
FLASHREL_API flashrel_code flashrel_schedule(const flashrel_attention_args* args, flashrel_schedule_buffer* buffer,
                                             void* stream);

/* The plan as JSON text: backend, every refusal with its reason, route, tiles, splits, workspace ledger, bytes, flops,
 * predicted time. Writes at most `capacity` bytes with a final NUL; *needed gets the full length with the NUL. */
FLASHREL_API flashrel_code flashrel_plan_json(const flashrel_attention_args* args, char* text, size_t capacity, size_t* needed);

/* ---------------------------------------------------------------- merge */

/* Merges partial results over disjoint key sets of the same rows:
 *     lse = ln sum_p exp(lse_p),   out = sum_p exp(lse_p - lse) * out_p        (0 and -inf where every lse_p is -inf)
 * parts_out (n_parts, n_rows, n_heads, head_dim) float32, float16 or bfloat16; parts_lse (n_parts, n_rows, n_heads) float32;
 * out (n_rows, n_heads, head_dim) same or another of these types; lse (n_rows, n_heads) float32, optional.
 * An out_p whose lse_p is -inf may hold anything. */
typedef struct flashrel_merge_args {
  size_t struct_size;
  int32_t memory; /* flashrel_memory */
  int32_t device;
  flashrel_tensor parts_out, parts_lse, out, lse;
} flashrel_merge_args;

FLASHREL_API void flashrel_merge_args_init(flashrel_merge_args* args, size_t struct_size);
FLASHREL_API flashrel_code flashrel_merge(const flashrel_merge_args* args, void* stream);

/* ---------------------------------------------------------------- the host's threads */

/* Calls task(context, index) once for every index in [0, n_tasks), on any threads, and returns when all are done.
 * FlashRel's tasks share work through atomic counters, so n_tasks is the number of workers wanted, not of work items. */
typedef void (*flashrel_task)(void* context, int32_t index);
typedef void (*flashrel_parallel_for)(void* pool, int32_t n_tasks, flashrel_task task, void* context);

/* Lends the caller's thread pool to the CPU backend; NULL returns to FlashRel's own pool. n_threads is how many tasks the
 * pool runs at once. Process-wide; not to be called while a call is running. */
FLASHREL_API flashrel_code flashrel_set_parallel_for(flashrel_parallel_for parallel_for, void* pool, int32_t n_threads);

/* Number of workers of FlashRel's own pool; 0 = the number of CPUs this process may use (also FLASHREL_NUM_THREADS). */
FLASHREL_API flashrel_code flashrel_set_num_threads(int32_t n_threads);

/* ---------------------------------------------------------------- information */

/* Build, CPU, GPUs and backends (each with the reason why it is off) as JSON; same text protocol as flashrel_plan_json. */
FLASHREL_API flashrel_code flashrel_info_json(char* text, size_t capacity, size_t* needed);

/* ---------------------------------------------------------------- names of the seed */

/* Smallest power of two >= n; 1 for n <= 1. */
FLASHREL_API int64_t flashrel_bucket_max_seqlen_q(int64_t n);

/* 1 for compute capability majors 10 and 11, else 0. */
FLASHREL_API int32_t flashrel_use_sheared_bias(int32_t capability_major, int32_t capability_minor);

/* The seed's split rule, bit for bit: 1 on Hopper (major 9) and on local layers, else a power of two from the number of
 * CTAs wanted, the batch and the key length. FlashRel's own plan (num_splits = 0) does not use it. */
FLASHREL_API int64_t flashrel_inkling_fa4_num_splits(int32_t is_local, int64_t batch_size, int64_t max_query_len,
                                                     int64_t num_heads, int64_t num_kv_heads, int64_t max_kv_len,
                                                     int32_t capability_major);

#ifdef __cplusplus
}
#endif
#endif
