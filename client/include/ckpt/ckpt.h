/* libckpt: hand a trainer's state to the ckptd agent of this node, and take it back after a crash.
 *
 * The contract, once for all functions:
 *  - Sizes are bytes, times are nanoseconds, steps are completed optimizer steps. Text is UTF-8.
 *  - Every call returns 0 or a negative code (-number of a row of proto/local/errors.def) and leaves a sentence for
 *    ckpt_error(), which belongs to the calling thread. No exception crosses this boundary; nothing is printed.
 *  - Nothing allocated here is freed by the caller, nothing the caller allocated is freed here. Structs begin with
 * their size, so that older callers keep working; fill the rest with zero.
 *  - No thread runs before ckpt_open. Calls on one handle come from one thread at a time, except ckpt_gate, ckpt_poll,
 *    ckpt_wait, ckpt_info and ckpt_restore_cancel, which any thread may call at any time before ckpt_close. These may
 *    still be under way when ckpt_close is called, which ends their waits with CKPT_E_CANCELLED; no other call may, and
 *    none may begin.
 *  - After fork() the child's handle is dead: every call returns CKPT_E_CANCELLED and touches nothing.
 *  - Except in ckpt_restore_*, a failure never means that training must stop: the save is dropped, counted, told.
 *
 * One training run:
 *
 *   ckpt_open(&options, &ck);
 *   ckpt_restore_begin(ck, &want, &from);
 *   if (from.snapshot_attempt) { read ckpt_restore_header(), allocate, ckpt_restore_read(ck, boxes, n); }
 *   while ((rc = ckpt_restore_end(ck, 0, NULL, &from)) == CKPT_RELOAD) { load again }
 *   ckpt_register(ck, &table);
 *   for (step = from.snapshot_step; step < total; ) {
 *     forward_backward();
 *     ckpt_gate(ck, 0);          // before anything that was registered as lazy changes
 *     update();
 *     ckpt_save(ck, ++step, extra, extra_bytes, NULL, 0);
 *   }
 *   ckpt_close(ck, timeout);
 */
#ifndef CKPT_CKPT_H_
#define CKPT_CKPT_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CKPT_API __attribute__((visibility("default")))
#else
#define CKPT_API
#endif

typedef int32_t ckpt_status; /* 0, CKPT_RELOAD, or negative */
typedef struct ckpt ckpt;

#define CKPT_RELOAD 1 /* only from ckpt_restore_end: another rank failed to load, load what `out` now says */

/* One for each row of proto/local/errors.def. */
enum {
  CKPT_OK = 0,
  CKPT_E_INVALID_ARGUMENT = -1,
  CKPT_E_AGENT_UNREACHABLE = -2,
  CKPT_E_NOT_FOUND = -3,
  CKPT_E_CORRUPT = -4,
  CKPT_E_REFUSED = -5,
  CKPT_E_LAYOUT_MISMATCH = -6,
  CKPT_E_RESTORE_FAILED = -7,
  CKPT_E_RANK_TAKEN = -8,
  CKPT_E_JOB_OWNED = -9,
  CKPT_E_QUOTA_EXCEEDED = -10,
  CKPT_E_REGION_FULL = -11,
  CKPT_E_STORAGE_FULL = -12,
  CKPT_E_STORAGE_READ_ONLY = -13,
  CKPT_E_STORAGE_IO = -14,
  CKPT_E_STORAGE_HUNG = -15,
  CKPT_E_NEWER_VERSION = -16,
  CKPT_E_FENCED = -17,
  CKPT_E_TIMEOUT = -18,
  CKPT_E_RANKS_MISSING = -19,
  CKPT_E_RANKS_DISAGREE = -20,
  CKPT_E_UNGATED = -21,
  CKPT_E_GATE_DEADLINE = -22,
  CKPT_E_NO_FREE_SLOT = -23,
  CKPT_E_MOVED = -24,
  CKPT_E_LAYOUT_PREPARING = -25,
  CKPT_E_TORN = -26,
  CKPT_E_BELOW_FLOOR = -27,
  CKPT_E_NOT_RESTORED = -28,
  CKPT_E_UNSUPPORTED_TYPE = -29,
  CKPT_E_UNSUPPORTED_DTYPE = -30,
  CKPT_E_PROTOCOL = -31,
  CKPT_E_DRAINING = -32,
  CKPT_E_PERMISSION = -33,
  CKPT_E_INTERNAL = -34,
  CKPT_E_CANCELLED = -35,
  CKPT_E_BUSY = -36,
  CKPT_E_INTERRUPTED = -37,
  CKPT_E_SUPERSEDED = -38,
  CKPT_E_DEVICE = -39
};

/* How tensors on a GPU are captured. PUSH: this process copies, on a stream of its own. PULL: a process of the agent
 * does (ckptd-copier), over CUDA IPC: it needs a context of its own on that GPU (hundreds of MiB of its memory), and
 * the memory behind captured tensors must not be freed while `exported` of ckpt_info names their registration. A save
 * that cannot be pulled is pushed; ckpt_info says why. Tensors on one GPU only. AUTO: both in turn at first, then the
 * one that costs training less: pull where it saves 2 % of a step over at least 20 saves of each. Steps are measured
 * between calls of ckpt_step or ckpt_save: one of them at every step then. */
enum { CKPT_PUSH = 0, CKPT_PULL = 1, CKPT_AUTO = 2 };

/* Flags of ckpt_options.
 * Postmortem: when this process dies without ckpt_close, the agent's copier takes the state of the last completed step
 * out of the GPU memory that it holds open (a context on that GPU, whatever the path), if no update was under way.
 * ckpt_step with `extra` at every step then: host memory of the state (at most 64 MiB) is copied there each time.
 * Tensors on one GPU, in memory that another process can keep (PyTorch: expandable_segments). ckpt_info says whether it
 * is so.
 * Restart: the job starts afresh. A process that registers without a restore joins as one that asked for
 * CKPT_WANT_FRESH, instead of being refused as NOT_RESTORED where snapshots exist. The session thread does it, as for
 * every process that does not restore: no call waits for the other ranks, and until all have come saves are dropped
 * (RANKS_MISSING). It joins like that as well where a restore was begun and failed. */
enum { CKPT_POSTMORTEM = 1, CKPT_RESTART = 2 };

typedef struct ckpt_options {
  uint32_t struct_bytes;
  uint32_t rank;
  uint32_t world;
  uint32_t every;           /* ckpt_step saves when step is a multiple; 0 = never by itself */
  const char* job;          /* [A-Za-z0-9._-]{1,128} */
  const char* socket;       /* NULL: $CKPTD_SOCKET, then /run/ckptd/ckptd.sock, then the per-user agent's */
  uint64_t gate_timeout_ns; /* a capture slower than this is given up at the gate; 0 = 30 s */
  uint32_t gpu_path;        /* CKPT_PUSH, CKPT_PULL, CKPT_AUTO */
  uint32_t flags;           /* CKPT_POSTMORTEM, CKPT_RESTART */
  uint64_t reserved[3];
} ckpt_options;

/* Starts two threads (session and copy) and tries to connect. Succeeds without an agent: the session thread keeps
 * trying, saves are dropped meanwhile. Errors: INVALID_ARGUMENT. */
CKPT_API ckpt_status ckpt_open(const ckpt_options* options, ckpt** out);

/* ---- State ------------------------------------------------------------------------------------------------------ */

/* dtype numbers, fixed: the strings of the safetensors format in this order. */
enum {
  CKPT_BOOL = 0,
  CKPT_F4 = 1,
  CKPT_F6_E2M3 = 2,
  CKPT_F6_E3M2 = 3,
  CKPT_U8 = 4,
  CKPT_I8 = 5,
  CKPT_F8_E5M2 = 6,
  CKPT_F8_E4M3 = 7,
  CKPT_F8_E8M0 = 8,
  CKPT_F8_E4M3FNUZ = 9,
  CKPT_F8_E5M2FNUZ = 10,
  CKPT_I16 = 11,
  CKPT_U16 = 12,
  CKPT_F16 = 13,
  CKPT_BF16 = 14,
  CKPT_I32 = 15,
  CKPT_U32 = 16,
  CKPT_F32 = 17,
  CKPT_C64 = 18,
  CKPT_F64 = 19,
  CKPT_I64 = 20,
  CKPT_U64 = 21
};

/* Flags of a tensor. Eager: copied before ckpt_save returns. Otherwise lazy: it stays unchanged until ckpt_gate.
 * Device: data is an address of a CUDA device whose primary context this process uses. An eager device tensor is copied
 * on the device, in the order of the stream that ckpt_stream names.
 * Stays: a promise that data stays mapped until the save is captured. It is read directly then, which is up to four
 * times as fast, and memory that was freed nevertheless kills the process (SIGSEGV). Without the promise the kernel
 * reads it, and freed memory drops the save as MOVED. */
enum { CKPT_EAGER = 1, CKPT_DEVICE = 2, CKPT_STAYS = 4 };

/* The tensors of this rank, as parallel arrays of `count` entries; texts and shapes are concatenated. All are copied
 * during the call, except that data[i] must stay readable until the save that uses it is captured; how freed memory is
 * met, CKPT_STAYS says. */
typedef struct ckpt_table {
  uint32_t struct_bytes;
  uint32_t reserved0;
  uint64_t count;
  const char* names;
  const uint64_t* name_ends; /* names[i] = [name_ends[i-1], name_ends[i]) */
  const uint8_t* dtypes;
  const uint32_t* dims;          /* number of dimensions of tensor i */
  const uint64_t* shapes;        /* concatenated */
  const uint64_t* shard_offsets; /* concatenated like shapes; NULL = nothing is sharded */
  const uint64_t* global_shapes; /* likewise */
  const void* const* data;       /* contiguous, row-major */
  const uint8_t* flags;          /* NULL = all lazy */
  uint64_t alias_count;          /* tied tensors: another name for tensor alias_of[k], stored once */
  const char* aliases;
  const uint64_t* alias_ends;
  const uint64_t* alias_of;
  uint64_t extra_bytes; /* what the non-tensor state needs now; capacity is max(64 KiB, 4 x this), or that of the
                           snapshot restored last if this fits */
  uint64_t reserved[4];
} ckpt_table;

/* Registers or replaces the layout. Returns at once; the agent prepares memory in the background (ckpt_info tells), and
 * saves are dropped as LAYOUT_PREPARING until then. The same layout with other addresses is cheap and keeps the slots.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED_DTYPE. */
CKPT_API ckpt_status ckpt_register(ckpt* ck, const ckpt_table* table);

/* ---- Save ------------------------------------------------------------------------------------------------------- */

enum {
  CKPT_SELFCHECK = 1,     /* digest lazy tensors now, compare with what was captured, drop the save when they differ */
  CKPT_WAIT_FOR_SLOT = 2, /* no slot is free: wait for one, up to the handle's gate_timeout, instead of NO_FREE_SLOT */
  CKPT_UNCHANGED = 4 /* ckpt_step: no lazy tensor was updated since the step before: no gate is missing, and nothing of
                        this step is captured post mortem */
};

/* Starts the capture of `step`, which must exceed every step saved before. `extra` (JSON text) and eager tensors are
 * copied before it returns; lazy ones by the copy thread. `data`: NULL, or the current addresses (count entries): if
 * one differs from the registered one the save is dropped as MOVED. 0 = capturing. Every negative code = dropped:
 * training goes on. The outcome is told by ckpt_poll and ckpt_wait. */
CKPT_API ckpt_status ckpt_save(ckpt* ck, uint64_t step, const void* extra, uint64_t extra_bytes,
                               const void* const* data, uint32_t flags);

/* ckpt_save when `step` is due by options.every; *saved (may be NULL) tells whether it was started. Best called at
 * every step: after one without a gate the next save is complete only when its own gate came. */
CKPT_API ckpt_status ckpt_step(ckpt* ck, uint64_t step, const void* extra, uint64_t extra_bytes,
                               const void* const* data, uint32_t flags, int32_t* saved);

/* Waits until captured state may be changed: the copy is done, or was given up at the deadline (GATE_DEADLINE, once;
 * that save is lost, training goes on). timeout_ns 0 = the handle's gate_timeout. Returns at once when nothing is being
 * captured. Call it before every change of lazy tensors, whether a save runs or not: a save after which no gate was
 * seen until the next one is dropped as UNGATED. */
CKPT_API ckpt_status ckpt_gate(ckpt* ck, uint64_t timeout_ns);

/* The same for work enqueued on a CUDA stream (cudaStream_t; null is the legacy default stream): returns when every
 * copy is submitted, usually at once, and makes the stream wait for the copies. Call it for each stream that will write
 * to captured tensors. A stream that is being captured into a CUDA graph is refused with INVALID_ARGUMENT: call this
 * before each replay instead. Without device tensors it is ckpt_gate. */
CKPT_API ckpt_status ckpt_gate_stream(ckpt* ck, void* stream, uint64_t timeout_ns);

/* The stream on which the tensors of `device` (ordinal of the driver) have their values when ckpt_save is called; until
 * told otherwise the legacy default stream. Cheap; once a step where streams change. Errors: DEVICE. */
CKPT_API ckpt_status ckpt_stream(ckpt* ck, int32_t device, void* stream);

/* Before the memory behind registered tensors is freed for good: returns when no other process has it open (CKPT_PULL;
 * otherwise at once). Saves are pushed until the next ckpt_register. TIMEOUT: `exported` of ckpt_info still names it.
 */
CKPT_API ckpt_status ckpt_unexport(ckpt* ck, uint64_t timeout_ns);

/* After TORN: the tensors (indices into the table) that changed before the gate. Writes up to `capacity` indices,
 * returns how many there are. */
CKPT_API uint64_t ckpt_torn(ckpt* ck, uint64_t* indices, uint64_t capacity);

/* STILL: not told, but asked for; see ckpt_wait. */
enum { CKPT_CAPTURED = 1, CKPT_PROTECTED = 2, CKPT_DURABLE = 4, CKPT_DROPPED = 8, CKPT_COPIED = 16, CKPT_STILL = 32 };

typedef struct ckpt_step_state {
  uint32_t struct_bytes;
  uint32_t
      flags;    /* CKPT_COPIED: this rank's copy is complete; CAPTURED, PROTECTED, DURABLE, DROPPED: of the whole job */
  int32_t code; /* DROPPED: why; otherwise what holds it up, 0 = nothing */
  uint32_t reserved0;
  uint64_t blocked_ns; /* time inside ckpt_save and ckpt_gate caused by this step */
  uint64_t eager_bytes;
} ckpt_step_state;

/* The state of a step saved by this handle (the last 64 are remembered; NOT_FOUND otherwise). */
CKPT_API ckpt_status ckpt_poll(ckpt* ck, uint64_t step, ckpt_step_state* out);

/* Waits until `step` has `level` (CAPTURED, PROTECTED or DURABLE). 0 = yes; TIMEOUT; a drop gives its code. Gives
 * nothing up, whatever the handle's gate_timeout, and is no gate: a capture that waits for its gate is completed only
 * with CKPT_STILL in `level`, the promise that nothing registered as lazy changes during the call. Call ckpt_gate
 * before the next change all the same. */
CKPT_API ckpt_status ckpt_wait(ckpt* ck, uint64_t step, uint32_t level, uint64_t timeout_ns);

/* ---- Restore ---------------------------------------------------------------------------------------------------- */

enum { CKPT_WANT_NEWEST = 0, CKPT_WANT_STEP = 1, CKPT_WANT_FRESH = 2 };

typedef struct ckpt_want {
  uint32_t struct_bytes;
  uint32_t want;
  uint64_t step;               /* of CKPT_WANT_STEP */
  uint64_t timeout_ns;         /* for the decision of all ranks, see ckpt_restore_begin; 0 = 120 s */
  uint64_t connect_timeout_ns; /* until an agent answers; the node's alone has so long; within timeout_ns; 0 = 10 s */
} ckpt_want;

typedef struct ckpt_skipped {
  uint64_t attempt;
  uint64_t step;
  int32_t code;
  uint32_t rank; /* whose part is bad; UINT32_MAX: no single one */
} ckpt_skipped;

typedef struct ckpt_restored {
  uint32_t struct_bytes;
  uint32_t source; /* 0 none, 1 region, 2 replica, 3 parity, 4 local, 5 storage, 6 rescued */
  uint64_t attempt;
  uint64_t snapshot_attempt; /* 0: nothing exists, training starts at step 0 */
  uint64_t snapshot_step;
  uint64_t slot_bytes;
  uint32_t image_count;
  uint32_t skipped_count;
  ckpt_skipped skipped[32]; /* newer steps that were passed over, and why */
} ckpt_restored;

/* Joins the job's next attempt and waits for its decision; collective in effect. Errors: AGENT_UNREACHABLE (the
 * sentence names the sockets that were tried, and why not),
 * RANKS_MISSING, RANKS_DISAGREE, RANK_TAKEN, JOB_OWNED, NOT_FOUND (CKPT_WANT_STEP), RESTORE_FAILED, TIMEOUT; never a
 * silent "nothing". All ranks must join, and the step be chosen, within timeout_ns. To read it from other nodes or the
 * storage, and to load it on all ranks, takes as long as it takes: TIMEOUT when nothing goes on for timeout_ns (noticed
 * within twice that; the sentence names the ranks), STORAGE_HUNG when the storage hangs (storage.timeout of the agent),
 * AGENT_UNREACHABLE when the agent is gone for timeout_ns. */
CKPT_API ckpt_status ckpt_restore_begin(ckpt* ck, const ckpt_want* want, ckpt_restored* out);

/* The safetensors header of image i (JSON text, checked by agent and library), valid until ckpt_restore_end. Tensor
 * offsets in it count from *data_offset of the slot. */
CKPT_API ckpt_status ckpt_restore_header(ckpt* ck, uint32_t image, const char** json, uint64_t* json_bytes,
                                         uint64_t* data_offset);

typedef struct ckpt_box {
  void* destination;
  uint64_t offset; /* in the slot */
  uint64_t bytes;
  uint64_t flags; /* 0, or CKPT_DEVICE: destination is an address of a CUDA device */
} ckpt_box;

/* Copies ranges of the snapshot into the caller's memory and checks every chunk they touch in the same pass, by several
 * threads. Device memory is written after what is enqueued on the stream of ckpt_stream, and has arrived when this
 * returns. Boxes may come in any order and must not overlap in the slot. CORRUPT: what was written is garbage; pass the
 * code to ckpt_restore_end. */
CKPT_API ckpt_status ckpt_restore_read(ckpt* ck, const ckpt_box* boxes, uint64_t count);

/* The whole slot, read-only; valid until ckpt_restore_end. Its checksums were made while it was filled, or matched,
 * since the agent started: then this reads nothing. Else it checks every chunk first, which takes as long as reading
 * the slot. Damage since then is found by ckpt_restore_read and by the agent's scrubber, not here. */
CKPT_API ckpt_status ckpt_restore_map(ckpt* ck, const void** address, uint64_t* bytes);

/* Reports this rank's result (0 = loaded) and waits for the others. 0: go, train from snapshot_step. CKPT_RELOAD: some
 * rank failed; *out describes the next attempt's snapshot, load again. */
CKPT_API ckpt_status ckpt_restore_end(ckpt* ck, ckpt_status result, const char* reason, ckpt_restored* out);

/* Ends the restore that waits in another thread, in ckpt_restore_begin or ckpt_restore_end: CANCELLED. It is over like
 * one that failed, and may be begun again. Nothing happens where none is under way. Takes a lock: not for the handler
 * of a signal. */
CKPT_API ckpt_status ckpt_restore_cancel(ckpt* ck);

/* Why skipped[index] of the last ckpt_restored was passed over, in a sentence for people: "not committed, and in the
 * memory of 6 of 8 ranks: rank 5: its node n2 and its holder n3 are gone; ...". Never NULL; empty where the agent
 * does not say. Valid until the next ckpt_restore_begin, CKPT_RELOAD of ckpt_restore_end, or ckpt_close. */
CKPT_API const char* ckpt_skipped_why(ckpt* ck, uint32_t index);

/* ---- The rest --------------------------------------------------------------------------------------------------- */

typedef struct ckpt_info_view {
  uint32_t struct_bytes;
  uint32_t connected;
  uint64_t attempt;
  uint64_t fenced_by; /* a newer attempt runs: this process is out of date; 0 = no */
  uint64_t captured_step;
  uint64_t durable_step;
  uint64_t prepared_bytes; /* memory of the newest layout */
  uint64_t layout_bytes;   /* 0 = no layout; saves work when prepared == layout bytes x slots and `ready` */
  uint32_t ready;          /* memory is prepared and a first slot granted: a save finds one */
  int32_t last_code;       /* last refusal or drop, 0 = none */
  uint64_t dropped;        /* saves dropped since ckpt_open */
  uint64_t saves;
  uint64_t reconnects;
  char last_sentence[256];
  uint64_t pinned_bytes; /* slots pinned for the GPUs of the registered tensors */
  char pin_error[128];   /* why not all: copies from GPUs then hold up the gate; empty: nothing was refused */
  uint32_t gpu_path;     /* of the next save: CKPT_PUSH or CKPT_PULL */
  uint32_t reserved0;
  uint64_t pulled;      /* saves that were pulled */
  uint64_t registered;  /* number of the newest ckpt_register that did not fail, from 1 */
  uint64_t exported;    /* the registration whose memory another process may have open; 0 = none */
  char path_why[128];   /* why this path */
  uint32_t rescuable;   /* 1: if this process died now, a copier would capture the last step (CKPT_POSTMORTEM) */
  uint32_t broken;      /* 1: a thread of this library failed; nothing is saved any more, last_sentence says why */
  char rescue_why[128]; /* why not; empty: it was not asked for, or only no step was completed yet */
} ckpt_info_view;

CKPT_API ckpt_status ckpt_info(ckpt* ck, ckpt_info_view* out);

/* Waits for the last save to become durable, at most timeout_ns (0 = do not wait), then ends threads and session. The
 * handle is gone in every case; TIMEOUT or the drop's code tell that the last save is not on storage (yet). */
CKPT_API ckpt_status ckpt_close(ckpt* ck, uint64_t timeout_ns);

CKPT_API uint32_t ckpt_crc32c(uint32_t crc, const void* data, uint64_t bytes); /* start with 0 */
CKPT_API const char* ckpt_error(void);                 /* the sentence of the last failure on this thread; never NULL */
CKPT_API const char* ckpt_code_name(ckpt_status code); /* "REGION_FULL"; never NULL */
CKPT_API const char* ckpt_next_step(ckpt_status code); /* what an operator should do; never NULL */
CKPT_API const char* ckpt_version(void);

#ifdef __cplusplus
}
#endif

#endif /* CKPT_CKPT_H_ */
