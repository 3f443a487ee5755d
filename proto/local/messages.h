// The socket between trainer (T) and agent (A): SOCK_SEQPACKET, one struct a packet, descriptors by SCM_RIGHTS.
//
// Every packet begins with a MessageHead. `size` is the packet's length; a receiver accepts a longer packet of a known
// type (a newer peer added fields at the end) and refuses a shorter one. Text is UTF-8, zero-filled, always with a
// final zero. The first packet of each side is HELLO / HELLO_REPLY: T offers a range of protocol majors, A picks the
// highest it speaks. No packet is above 64 KiB.
//
// Dialogue of a run:
//
//   T HELLO            A HELLO_REPLY
//   T JOIN             A SKIPPED … (why newer steps are passed over, for people; older agents send none),
//                      A LOAD (descriptors: slot file, ctl file, both read-only)    or LOAD without a snapshot
//                      A PATIENCE … (the decision names this restore; newer agents. From then on also
//   T LOADING …        while it reads what LOAD gave it)
//   T LOADED | FAILED  A GO                        or LOAD again, of a new attempt, when any rank failed; ERROR ends it
//   T LAYOUT (sealed memfd with the headers)       A LAYOUT_STATE (preparing, bytes so far) …,
//                                                  A LAYOUT_READY (ctl, bell, hint eventfd, slot files)
//   A GRANT            T SAVE … T DONE | DROP      A NEWS
//   T DEVICES          (tensors on GPUs: before LAYOUT, and after LAYOUT_READY when the slots are pinned)
//   T COPIER           A COPIER_REPLY (the copier's socket and pidfd): see copier.h
//   T RESCUE           (its copier shall capture what it leaves when it dies): see rescue.h
//   T BYE
//
// Reconnection (the agent was restarted, T keeps its ticket, attempt and bell): HELLO, then RESUME with the bell's
// descriptor instead of JOIN; A answers LAYOUT_READY when region and bell belong together, else RESUME_REFUSED: the
// trainer drops what it had and goes on with LAYOUT.
//
// JOIN, LOADED, LAYOUT and RESUME are repeated after a reconnection until answered; all are idempotent by ticket,
// attempt and epoch. SAVE, DONE, DROP and GRANT are hints: what counts stands in the bell and in the ctl file. Sends
// never block: a full socket drops the packet and counts it. NEWS repeats the last outcomes, so that a lost one is
// healed by the next.
#ifndef CKPTD_PROTO_LOCAL_MESSAGES_H_
#define CKPTD_PROTO_LOCAL_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/local/region.h"
#include "proto/local/version.h"

namespace ckptd {

inline constexpr uint32_t kMessageMagic = 0x4d504b43;  // "CKPM"
inline constexpr size_t kMaxPacketBytes = 64u << 10;
inline constexpr size_t kMaxPacketFds = 16;
inline constexpr uint32_t kMaxRanks = 1u << 16;

enum class MessageType : uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kJoin = 3,
  kLoad = 4,
  kLoaded = 5,
  kGo = 6,
  kError = 7,
  kLayout = 8,
  kLayoutState = 9,
  kLayoutReady = 10,
  kGrant = 11,
  kSave = 12,
  kDone = 13,
  kDrop = 14,
  kNews = 15,
  kResume = 16,
  kResumeRefused = 17,
  kBye = 18,
  kSlot = 19,
  kCopier = 20,
  kCopierReply = 21,
  kDevices = 22,
  kRescue = 23,
  kSkipped = 24,
  kPatience = 25,
  kLoading = 26,
};

struct MessageHead {
  uint32_t magic;
  uint16_t type;   // MessageType
  uint16_t major;  // protocol major of the sender's choice; 0 before HELLO_REPLY
  uint32_t size;   // bytes of the packet, this head included
  uint32_t reserved;
  uint64_t trace;  // of the save or restore this belongs to; 0 = none
};
static_assert(sizeof(MessageHead) == 24);

struct HelloMessage {
  MessageHead head;
  uint16_t min_major;
  uint16_t max_major;
  uint32_t pid;      // as the trainer sees itself; SO_PEERCRED is what counts
  char library[32];  // version of libckpt
};

// What a save() does that finds no free slot. Decided by the agent's configuration; kReplaceQueued is kSkip to a
// trainer: the agent frees slots earlier.
enum class BackPressure : uint16_t { kSkip = 0, kWait = 1, kReplaceQueued = 2 };

struct HelloReplyMessage {
  MessageHead head;
  uint16_t major;
  uint16_t back_pressure;  // BackPressure
  uint32_t slots;          // per rank, configured
  uint64_t region_id;
  uint64_t job_quota;  // bytes
  char agent[32];      // version
  char node[64];
};

enum class Want : uint32_t { kNewest = 0, kStep = 1, kFresh = 2 };

struct JoinMessage {
  MessageHead head;
  char job[kJobNameBytes];
  uint32_t rank;
  uint32_t world;
  uint64_t ticket;
  uint32_t want;  // Want
  uint32_t
      implicit;  // 1: this is the first save of a process that did not call restore(): refused when a snapshot exists
  uint64_t want_step;
  uint64_t timeout_ms;
};

struct SkippedStep {
  uint64_t attempt;
  uint64_t step;
  uint32_t code;  // number of errors.def
  uint32_t rank;  // whose part is bad; UINT32_MAX = no single one
};

enum class Source : uint32_t {
  kNone = 0,
  kRegion = 1,
  kReplica = 2,
  kParity = 3,
  kLocal = 4,
  kStorage = 5,
  kRescued = 6
};

inline constexpr uint32_t kMaxSkipped = 32;

// A hint before the LOAD of the same attempt, one for each of its skipped steps.
struct SkippedMessage {
  MessageHead head;
  uint64_t attempt;  // of the LOAD
  SkippedStep step;
  char why[1000];
};

// With a snapshot: two descriptors, the slot file and the ctl file whose record `slot` describes it.
struct LoadMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t snapshot_attempt;  // 0 = no snapshot: start at step 0
  uint64_t snapshot_step;
  uint32_t source;  // Source
  uint32_t slot;
  uint32_t layout;
  // 0: the slot is of an agent before, and has not been checked again yet. Who copies checks anyway; who maps, then.
  uint32_t verified;
  uint64_t slot_bytes;
  uint32_t skipped_count;
  uint32_t reserved0;
  SkippedStep skipped[kMaxSkipped];
};

struct LoadedMessage {  // code 0 = loaded and verified; else the number of an error, and `reason`
  MessageHead head;
  uint64_t attempt;
  uint64_t ticket;
  uint32_t code;
  uint32_t reserved0;
  uint64_t bytes;
  char reason[256];
};

// The timeout of the JOIN was for the decision. What was decided goes on to be loaded, by this rank or others: T waits
// for GO, another LOAD or ERROR so much longer from now on, at least.
struct PatienceMessage {
  MessageHead head;
  uint64_t ticket;
  uint64_t patience_ms;
};

// A hint, about once a second while the trainer reads. Only to an agent that sent PATIENCE on this connection: older
// ones do not know it.
struct LoadingMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t ticket;
};

struct GoMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t start_step;
  uint64_t durable_step;  // newest committed on the lineage, 0 = none
};

struct ErrorMessage {
  MessageHead head;
  uint32_t code;     // number of errors.def
  uint32_t answers;  // MessageType this refuses, 0 = none in particular
  char sentence[1000];
};

// One descriptor: a memfd sealed SHRINK|GROW|WRITE|SEAL holding the headers of all images, one after the other, each
// 8 + N bytes long. Data sizes follow from the headers.
struct LayoutMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t ticket;
  uint64_t header_bytes;  // of the memfd
  uint32_t image_count;
  uint32_t header_crc;  // CRC32C of the memfd
};

struct LayoutStateMessage {
  MessageHead head;
  uint32_t layout;
  uint32_t header_crc;
  uint64_t prepared_bytes;
  uint64_t total_bytes;
};

// Descriptors, in this order: ctl file (read-only), bell, hint eventfd, then slot_count slot files (read-write).
struct LayoutReadyMessage {
  MessageHead head;
  uint64_t attempt;
  uint32_t layout;
  uint32_t header_crc;
  uint32_t slot_count;
  uint32_t chunk_count;
  uint64_t chunk_bytes;
  uint64_t slot_bytes;
  uint64_t region_id;
  uint64_t bell_id;
  uint64_t file_id[kMaxSlots];
};

// One descriptor: the file that takes the place of a retired slot.
struct SlotMessage {
  MessageHead head;
  uint32_t layout;
  uint32_t slot;
  uint64_t file_id;
};

struct GrantMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t epoch;
  uint64_t floor;
  uint32_t layout;
  uint32_t slot;
};

// SAVE, DONE and DROP.
struct CaptureMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t step;
  uint64_t epoch;
  uint32_t layout;
  uint32_t slot;
  uint32_t code;  // DROP: why
  uint32_t reserved0;
};

inline constexpr uint32_t kStepCaptured = 1;  // on every rank
inline constexpr uint32_t kStepProtected = 2;
inline constexpr uint32_t kStepDurable = 4;
inline constexpr uint32_t kStepDropped = 8;
inline constexpr uint32_t kMaxOutcomes = 32;

struct StepOutcome {
  uint64_t step;
  uint32_t flags;  // kStep…
  uint32_t code;   // why it was dropped, or what keeps it from being durable
};

struct NewsMessage {
  MessageHead head;
  uint64_t attempt;
  uint64_t fenced_by;      // a newer attempt, 0 = none
  uint64_t captured_step;  // newest of this attempt
  uint64_t durable_step;   // newest committed on the lineage
  uint64_t protected_step;
  uint32_t last_error;  // number of errors.def, 0 = none
  uint32_t outcome_count;
  char last_sentence[256];
  StepOutcome outcomes[kMaxOutcomes];  // newest last
};

// One descriptor: the bell.
struct ResumeMessage {
  MessageHead head;
  char job[kJobNameBytes];
  uint32_t rank;
  uint32_t world;
  uint64_t ticket;
  uint64_t attempt;
  uint64_t region_id;
  uint64_t bell_id;
  uint32_t layout;
  uint32_t header_crc;
};

struct ResumeRefusedMessage {
  MessageHead head;
  uint32_t code;
  uint32_t reserved0;
  char sentence[256];
};

struct ByeMessage {
  MessageHead head;
};

inline constexpr size_t kGpuUuidBytes = 16;

// Asks for a process that copies from this GPU for this trainer. One at a time per GPU: asked for again, the agent ends
// the one before.
struct CopierMessage {
  MessageHead head;
  uint8_t gpu[kGpuUuidBytes];
};

// With code 0 two descriptors: one end of a socket pair, whose other end the copier has, and the copier's pidfd. Else
// no descriptor, and why.
struct CopierReplyMessage {
  MessageHead head;
  uint8_t gpu[kGpuUuidBytes];
  uint32_t code;
  uint32_t reserved0;
  char sentence[256];
};

enum class CapturePath : uint32_t { kPush = 0, kPull = 1 };

inline constexpr uint32_t kMaxDevices = 16;

// How the tensors of one GPU are captured.
struct DeviceReport {
  uint8_t gpu[kGpuUuidBytes];
  uint32_t path;          // CapturePath
  uint32_t samples;       // steps measured on each path; 0: nothing was compared
  uint64_t bytes;         // of tensors
  int64_t push_loss_ppm;  // step time lost to a save, of the time of a step without one
  int64_t pull_loss_ppm;
  char why[128];  // why this path
};

// For `status` and metrics. Sent before a LAYOUT with tensors on GPUs, again when its slots were pinned, and when
// something of it changes. Between LAYOUT_READY and the second one its trainer pins memory, which holds up every GPU of
// the node: the agent sends LAYOUT_READY to one such trainer at a time, and waits for it, or for its end, at most a
// minute.
struct DevicesMessage {
  MessageHead head;
  uint64_t pinned_bytes;
  uint64_t pin_ns;           // all pinning took, for these slots
  uint64_t longest_step_ns;  // between two gates while it was pinning; 0: none came
  uint32_t device_count;
  uint32_t reserved0;
  char pin_error[128];  // why memory is not pinned, "" = it is
  DeviceReport devices[kMaxDevices];
};

// From now on, and until the next one: when this process ends without BYE, its copiers get so long before they are
// killed, and JOINs of its job wait for that. Sent when it changes.
struct RescueMessage {
  MessageHead head;
  uint64_t hold_ns;  // at most kMostHoldNs; 0: they are killed at once
  char why[128];     // hold_ns 0: why there is none although it is wanted, "" = it is not
};

static_assert(sizeof(HelloMessage) == 64);
static_assert(sizeof(HelloReplyMessage) == 144);
static_assert(sizeof(JoinMessage) == 24 + 136 + 40);
static_assert(sizeof(LoadMessage) == 24 + 24 + 16 + 16 + kMaxSkipped * 24);
static_assert(sizeof(SkippedMessage) == 24 + 8 + 24 + 1000);
static_assert(sizeof(LoadedMessage) == 24 + 32 + 256);
static_assert(sizeof(PatienceMessage) == 40);
static_assert(sizeof(LoadingMessage) == 40);
static_assert(sizeof(GoMessage) == 48);
static_assert(sizeof(ErrorMessage) == 1032);
static_assert(sizeof(LayoutMessage) == 56);
static_assert(sizeof(LayoutStateMessage) == 48);
static_assert(sizeof(LayoutReadyMessage) == 24 + 8 + 16 + 32 + 64);
static_assert(sizeof(SlotMessage) == 40);
static_assert(sizeof(GrantMessage) == 56);
static_assert(sizeof(CaptureMessage) == 64);
static_assert(sizeof(NewsMessage) == 24 + 48 + 256 + kMaxOutcomes * 16);
static_assert(sizeof(ResumeMessage) == 24 + 136 + 48);
static_assert(sizeof(ResumeRefusedMessage) == 288);
static_assert(sizeof(CopierMessage) == 40);
static_assert(sizeof(CopierReplyMessage) == 24 + 16 + 8 + 256);
static_assert(sizeof(DeviceReport) == 16 + 8 + 24 + 128);
static_assert(sizeof(DevicesMessage) == 24 + 24 + 8 + 128 + kMaxDevices * sizeof(DeviceReport));
static_assert(sizeof(RescueMessage) == 24 + 8 + 128);
static_assert(std::is_trivially_copyable_v<NewsMessage> && sizeof(NewsMessage) <= kMaxPacketBytes);

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_MESSAGES_H_
