/* The C ABI from C99: one decode worked out by hand, struct sizes of older callers, null arguments, sentences, texts, the
 * merge, threads and the seed's names. Prints what failed and exits 1. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashrel/flashrel.h"

static int n_checks = 0, n_failed = 0;

static void check(int ok, const char* what, int line) {
  ++n_checks;
  if (ok) return;
  ++n_failed;
  printf("abi.c:%d: %s; last error: '%s'\n", line, what, flashrel_last_error());
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
#define CHECK_ERROR(call, expected_code, word)            \
  do {                                                    \
    CHECK((call) == (expected_code));                     \
    CHECK(strstr(flashrel_last_error(), (word)) != NULL); \
  } while (0)

static flashrel_tensor make_tensor(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  flashrel_tensor t;
  int64_t step = 1;
  int32_t i;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  for (i = rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = step;
    step *= shape[i];
  }
  return t;
}

/* One query on three keys, one head of two dimensions, q = 0; the bias makes the weights 1 : 3 : 1. */
typedef struct {
  float q[2], k[6], v[6], rel_logits[2], out[2], lse[1];
  int32_t table[3], kv_len[1], cu_q[2];
  flashrel_attention_args args;
} Call;

static void make_call(Call* c) {
  const int64_t q_shape[] = {1, 1, 2}, cache_shape[] = {3, 1, 1, 2}, table_shape[] = {1, 3}, one[] = {1}, two[] = {2},
                lse_shape[] = {1, 1};
  const float v[] = {1, 10, 2, 20, 3, 30};
  memset(c, 0, sizeof *c);
  memcpy(c->v, v, sizeof v);
  c->rel_logits[1] = logf(3.0f);
  c->table[0] = 0, c->table[1] = 1, c->table[2] = 2;
  c->kv_len[0] = 3;
  c->cu_q[1] = 1;
  flashrel_attention_args_init(&c->args, sizeof c->args);
  c->args.q = make_tensor(c->q, FLASHREL_FLOAT32, 3, q_shape);
  c->args.out = make_tensor(c->out, FLASHREL_FLOAT32, 3, q_shape);
  c->args.k_cache = make_tensor(c->k, FLASHREL_FLOAT32, 4, cache_shape);
  c->args.v_cache = make_tensor(c->v, FLASHREL_FLOAT32, 4, cache_shape);
  c->args.block_table = make_tensor(c->table, FLASHREL_INT32, 2, table_shape);
  c->args.cache_seqlens = make_tensor(c->kv_len, FLASHREL_INT32, 1, one);
  c->args.cu_seqlens_q = make_tensor(c->cu_q, FLASHREL_INT32, 1, two);
  c->args.rel_logits = make_tensor(c->rel_logits, FLASHREL_FLOAT32, 3, q_shape);
  c->args.lse = make_tensor(c->lse, FLASHREL_FLOAT32, 2, lse_shape);
  c->args.softmax_scale = 1.0;
}

static flashrel_code run(const flashrel_attention_args* args) {
  size_t bytes = 0;
  char* memory;
  void* aligned;
  flashrel_code code = flashrel_attention_workspace(args, &bytes);
  if (code != FLASHREL_OK) return code;
  memory = malloc(bytes + 256);
  aligned = memory + (256 - (uintptr_t)memory % 256);
  code = flashrel_attention(args, aligned, bytes, NULL);
  free(memory);
  return code;
}

static void test_result(void) {
  Call c;
  make_call(&c);
  CHECK(run(&c.args) == FLASHREL_OK);
  CHECK(strcmp(flashrel_last_error(), "") == 0);
  CHECK(fabsf(c.out[0] - 10.0f / 5) < 1e-5f);
  CHECK(fabsf(c.out[1] - 100.0f / 5) < 1e-4f);
  CHECK(fabsf(c.lse[0] - logf(5.0f)) < 1e-5f);
}

/* Callers built against an older header know fewer fields; what they do not know is zero, which is the old behaviour. */
static void test_struct_size(void) {
  Call c;
  flashrel_attention_args older;
  flashrel_merge_args older_merge;
  const size_t known = offsetof(flashrel_attention_args, backend), known_merge = offsetof(flashrel_merge_args, lse);
  size_t i;
  memset(&older, 0x5a, sizeof older);
  flashrel_attention_args_init(&older, known);
  CHECK(older.struct_size == known && older.causal == 1 && older.window_left == -1);
  for (i = known; i < sizeof older; ++i) CHECK(((const unsigned char*)&older)[i] == 0x5a);
  memset(&older_merge, 0x5a, sizeof older_merge);
  flashrel_merge_args_init(&older_merge, known_merge);
  CHECK(older_merge.struct_size == known_merge && older_merge.device == -1);
  for (i = known_merge; i < sizeof older_merge; ++i) CHECK(((const unsigned char*)&older_merge)[i] == 0x5a);
  make_call(&c);
  c.args.backend = "nonsense";
  c.args.struct_size = offsetof(flashrel_attention_args, backend);
  CHECK(run(&c.args) == FLASHREL_OK);
  c.args.struct_size = sizeof c.args + 64; /* a newer caller */
  c.args.backend = NULL;
  {
    struct {
      flashrel_attention_args args;
      char unknown_fields[64];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.args = c.args;
    CHECK(run(&newer.args) == FLASHREL_OK);
  }
  c.args.struct_size = 0;
  CHECK_ERROR(run(&c.args), FLASHREL_INVALID_ARGUMENT, "struct_size");
}

/* A schedule serves the calls whose plan it was made for, and no other. */
static void test_shared_schedule(void) {
  Call c;
  flashrel_schedule_buffer buffer;
  char* memory;
  size_t own_bytes = 0, shared_bytes = 0;
  make_call(&c);
  memset(&buffer, 0, sizeof buffer);
  CHECK_ERROR(flashrel_schedule_bytes(&c.args, NULL), FLASHREL_INVALID_ARGUMENT, "bytes");
  CHECK_ERROR(flashrel_schedule(&c.args, NULL, NULL), FLASHREL_INVALID_ARGUMENT, "buffer");
  CHECK(flashrel_schedule_bytes(&c.args, &buffer.bytes) == FLASHREL_OK);
  CHECK(buffer.bytes > 0);
  CHECK_ERROR(flashrel_schedule(&c.args, &buffer, NULL), FLASHREL_WORKSPACE, "buffer: got a null pointer");
  memory = malloc(buffer.bytes + 256);
  buffer.data = memory + (256 - (uintptr_t)memory % 256);
  --buffer.bytes;
  CHECK_ERROR(flashrel_schedule(&c.args, &buffer, NULL), FLASHREL_WORKSPACE, "buffer_bytes");
  ++buffer.bytes;

  c.args.schedule = &buffer; /* not made yet */
  CHECK_ERROR(run(&c.args), FLASHREL_INVALID_ARGUMENT, "schedule");
  CHECK(flashrel_schedule(&c.args, &buffer, NULL) == FLASHREL_OK);
  CHECK(run(&c.args) == FLASHREL_OK);
  CHECK(fabsf(c.out[0] - 10.0f / 5) < 1e-5f);
  CHECK(flashrel_attention_workspace(&c.args, &shared_bytes) == FLASHREL_OK);
  c.args.schedule = NULL;
  CHECK(flashrel_attention_workspace(&c.args, &own_bytes) == FLASHREL_OK);
  CHECK(shared_bytes + buffer.bytes == own_bytes);

  c.args.schedule = &buffer;
  c.args.window_left = 1; /* another mask, another plan */
  CHECK_ERROR(run(&c.args), FLASHREL_INVALID_ARGUMENT, "schedule");
  c.args.window_left = -1;
  c.args.num_splits = 2;
  CHECK_ERROR(run(&c.args), FLASHREL_INVALID_ARGUMENT, "schedule");
  free(memory);
}

static void test_errors(void) {
  Call c;
  size_t bytes = 0;
  make_call(&c);
  CHECK_ERROR(flashrel_attention_workspace(NULL, &bytes), FLASHREL_INVALID_ARGUMENT, "args");
  CHECK_ERROR(flashrel_attention_workspace(&c.args, NULL), FLASHREL_INVALID_ARGUMENT, "bytes");
  CHECK_ERROR(flashrel_attention(NULL, NULL, 0, NULL), FLASHREL_INVALID_ARGUMENT, "args");
  CHECK(flashrel_attention_workspace(&c.args, &bytes) == FLASHREL_OK);
  if (bytes > 0) {
    CHECK_ERROR(flashrel_attention(&c.args, NULL, bytes, NULL), FLASHREL_WORKSPACE, "workspace");
    CHECK_ERROR(flashrel_attention(&c.args, (void*)256, bytes - 1, NULL), FLASHREL_WORKSPACE, "workspace");
    CHECK_ERROR(flashrel_attention(&c.args, (void*)257, bytes, NULL), FLASHREL_WORKSPACE, "workspace");
  }

  c.out[0] = 77.0f;
#define CHECK_REFUSED(change, code, word)  \
  do {                                     \
    make_call(&c);                         \
    c.out[0] = 77.0f;                      \
    change;                                \
    CHECK_ERROR(run(&c.args), code, word); \
    CHECK(c.out[0] == 77.0f);              \
  } while (0)
  CHECK_REFUSED(c.args.softmax_scale = NAN, FLASHREL_INVALID_ARGUMENT, "softmax_scale");
  CHECK_REFUSED(c.args.q.data = NULL, FLASHREL_INVALID_ARGUMENT, "q");
  CHECK_REFUSED(c.args.q.rank = 2, FLASHREL_INVALID_ARGUMENT, "q");
  CHECK_REFUSED(c.args.q.dtype = FLASHREL_INT32, FLASHREL_INVALID_ARGUMENT, "q");
  CHECK_REFUSED(c.args.q.dtype = 17, FLASHREL_INVALID_ARGUMENT, "q");
  CHECK_REFUSED(c.args.v_cache.shape[0] = 2, FLASHREL_INVALID_ARGUMENT, "v_cache");
  CHECK_REFUSED(c.args.q.stride[2] = 2, FLASHREL_INVALID_ARGUMENT, "q");
  CHECK_REFUSED(c.args.num_splits = -1, FLASHREL_INVALID_ARGUMENT, "num_splits");
  CHECK_REFUSED(c.args.window_left = -2, FLASHREL_INVALID_ARGUMENT, "window_left");
  CHECK_REFUSED(c.args.causal = 2, FLASHREL_INVALID_ARGUMENT, "causal");
  CHECK_REFUSED(c.args.rel_edge = 5, FLASHREL_INVALID_ARGUMENT, "rel_edge");
  CHECK_REFUSED(c.args.rel = c.args.rel_logits, FLASHREL_INVALID_ARGUMENT, "rel_logits");
  CHECK_REFUSED(c.args.rel_scale = c.args.cache_seqlens, FLASHREL_INVALID_ARGUMENT, "rel_scale");
  CHECK_REFUSED(c.args.memory = 2, FLASHREL_INVALID_ARGUMENT, "memory");
  CHECK_REFUSED(c.args.out.data = c.q, FLASHREL_INVALID_ARGUMENT, "out");
  CHECK_REFUSED(c.args.backend = "nonsense", FLASHREL_INVALID_ARGUMENT, "backend");
  CHECK_REFUSED(c.args.route = "nonsense", FLASHREL_INVALID_ARGUMENT, "route");
  CHECK_REFUSED(c.args.route = "fused", FLASHREL_INVALID_ARGUMENT, "route");
  CHECK_REFUSED(c.kv_len[0] = 4, FLASHREL_INVALID_ARGUMENT, "cache_seqlens");
  CHECK_REFUSED(c.kv_len[0] = -1, FLASHREL_INVALID_ARGUMENT, "cache_seqlens");
  CHECK_REFUSED(c.cu_q[1] = 2, FLASHREL_INVALID_ARGUMENT, "cu_seqlens_q");
  CHECK_REFUSED(c.cu_q[1] = -1, FLASHREL_INVALID_ARGUMENT, "cu_seqlens_q");
  CHECK_REFUSED((c.args.validate = 1, c.table[1] = 3), FLASHREL_INVALID_ARGUMENT, "block_table");
}

static void test_texts(void) {
  Call c;
  size_t needed = 0, again = 0;
  char small[8], *text;
  make_call(&c);
  CHECK(strcmp(flashrel_version(), "0.1.0") == 0);
  CHECK(flashrel_info_json(NULL, 0, &needed) == FLASHREL_OK && needed > 2);
  text = malloc(needed);
  CHECK(flashrel_info_json(text, needed, &again) == FLASHREL_OK && again == needed);
  CHECK(strlen(text) == needed - 1 && text[0] == '{' && strstr(text, "\"cpu\"") != NULL);
  free(text);
  memset(small, 'x', sizeof small);
  CHECK(flashrel_plan_json(&c.args, small, 4, &needed) == FLASHREL_OK && needed > 4);
  CHECK(strlen(small) == 3 && small[4] == 'x');
  CHECK_ERROR(flashrel_plan_json(NULL, small, sizeof small, &needed), FLASHREL_INVALID_ARGUMENT, "args");
}

static void test_merge(void) {
  const int64_t parts_shape[] = {2, 1, 3, 1}, parts_lse_shape[] = {2, 1, 3}, out_shape[] = {1, 3, 1}, lse_shape[] = {1, 3};
  /* Head 1 has no keys in either part, head 2 none in the second: such parts may hold anything. */
  float parts[] = {4.0f, NAN, 6.0f, 8.0f, NAN, NAN}, parts_lse[6], out[3] = {7, 7, 7}, lse[3] = {7, 7, 7};
  flashrel_merge_args args;
  parts_lse[0] = logf(1.0f), parts_lse[3] = logf(3.0f), parts_lse[2] = 2.0f;
  parts_lse[1] = parts_lse[4] = parts_lse[5] = -INFINITY;
  flashrel_merge_args_init(&args, sizeof args);
  args.parts_out = make_tensor(parts, FLASHREL_FLOAT32, 4, parts_shape);
  args.parts_lse = make_tensor(parts_lse, FLASHREL_FLOAT32, 3, parts_lse_shape);
  args.out = make_tensor(out, FLASHREL_FLOAT32, 3, out_shape);
  args.lse = make_tensor(lse, FLASHREL_FLOAT32, 2, lse_shape);
  CHECK(flashrel_merge(&args, NULL) == FLASHREL_OK);
  CHECK(fabsf(out[0] - 7.0f) < 1e-6f && out[1] == 0.0f && out[2] == 6.0f);
  CHECK(fabsf(lse[0] - logf(4.0f)) < 1e-6f && lse[1] == -INFINITY && lse[2] == 2.0f);
  args.parts_lse.shape[0] = 3;
  CHECK_ERROR(flashrel_merge(&args, NULL), FLASHREL_INVALID_ARGUMENT, "parts_lse");
  CHECK_ERROR(flashrel_merge(NULL, NULL), FLASHREL_INVALID_ARGUMENT, "args");
}

static void serial_for(void* pool, int32_t n_tasks, flashrel_task task, void* context) {
  int32_t i;
  ++*(int*)pool;
  for (i = 0; i < n_tasks; ++i) task(context, i);
}

/* Enough rows for several workers. q = 0 and V row j holds j, so that row i gives i / 2. */
static void test_threads(void) {
  enum { kTokens = 600, kDim = 2 };
  static float q[kTokens * kDim], k[kTokens * kDim], v[kTokens * kDim], out[kTokens * kDim];
  const int64_t q_shape[] = {kTokens, 1, kDim}, cache_shape[] = {1, kTokens, 1, kDim};
  Call c;
  int n_calls = 0, i;
  make_call(&c);
  for (i = 0; i < kTokens * kDim; ++i) v[i] = (float)(i / kDim);
  c.args.q = make_tensor(q, FLASHREL_FLOAT32, 3, q_shape);
  c.args.out = make_tensor(out, FLASHREL_FLOAT32, 3, q_shape);
  c.args.k_cache = make_tensor(k, FLASHREL_FLOAT32, 4, cache_shape);
  c.args.v_cache = make_tensor(v, FLASHREL_FLOAT32, 4, cache_shape);
  memset(&c.args.rel_logits, 0, sizeof c.args.rel_logits);
  memset(&c.args.lse, 0, sizeof c.args.lse);
  c.kv_len[0] = c.cu_q[1] = kTokens;
#define CHECK_AVERAGES()                                                                            \
  do {                                                                                              \
    int wrong = 0;                                                                                  \
    CHECK(run(&c.args) == FLASHREL_OK);                                                             \
    for (i = 0; i < kTokens * kDim; ++i) wrong += fabsf(out[i] - 0.5f * (float)(i / kDim)) > 1e-3f; \
    CHECK(wrong == 0);                                                                              \
    memset(out, 0, sizeof out);                                                                     \
  } while (0)
  CHECK(flashrel_set_parallel_for(serial_for, &n_calls, 3) == FLASHREL_OK);
  CHECK_AVERAGES();
  CHECK(n_calls > 0);
  CHECK(flashrel_set_parallel_for(NULL, NULL, 0) == FLASHREL_OK);
  CHECK(flashrel_set_num_threads(1) == FLASHREL_OK);
  CHECK_AVERAGES();
  CHECK_ERROR(flashrel_set_num_threads(-1), FLASHREL_INVALID_ARGUMENT, "n_threads");
  CHECK(flashrel_set_num_threads(0) == FLASHREL_OK);
  CHECK_AVERAGES();
}

static void test_seed_names(void) {
  CHECK(flashrel_bucket_max_seqlen_q(0) == 1 && flashrel_bucket_max_seqlen_q(129) == 256);
  CHECK(flashrel_use_sheared_bias(10, 3) == 1 && flashrel_use_sheared_bias(11, 0) == 1);
  CHECK(flashrel_use_sheared_bias(9, 0) == 0 && flashrel_use_sheared_bias(12, 0) == 0);
  CHECK(flashrel_inkling_fa4_num_splits(0, 1, 1, 64, 8, 131072, 10) == 16);
  CHECK(flashrel_inkling_fa4_num_splits(0, 1, 1, 8, 1, 131072, 10) == 128);
  CHECK(flashrel_inkling_fa4_num_splits(1, 1, 1, 8, 1, 131072, 10) == 1);
  CHECK(flashrel_inkling_fa4_num_splits(0, 1, 1, 8, 1, 131072, 9) == 1);
}

int main(void) {
  test_result();
  test_struct_size();
  test_shared_schedule();
  test_errors();
  test_texts();
  test_merge();
  test_threads();
  test_seed_names();
  printf("%d checks, %d failed\n", n_checks, n_failed);
  return n_failed == 0 ? 0 : 1;
}
