// What a simulated world is made of: nodes with their regions and agents, trainers, and what is on its way between
// them.
#ifndef CKPTD_TESTS_PROTOCOL_PARTS_H_
#define CKPTD_TESTS_PROTOCOL_PARTS_H_

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/job/machine.h"
#include "daemon/job/removal.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/region/peer_rules.h"
#include "daemon/snapshot/machine.h"
#include "tests/protocol/store.h"

namespace ckptd::sim {

struct RegionSlot {
  snapshot::SlotId id;
  SlotStateCode state = SlotStateCode::kFree;
  Epoch epoch = 0;
  snapshot::Owner owner;
  SnapshotId record;
  Image crcs{};
  bool persisted = false;
  int file = 0;  // kNoFile: given up for a new layout
};
constexpr int kNoFile = -1;
// A copy of a slot of another node's rank.
struct CopySlot {
  SlotStateCode state = SlotStateCode::kFree;
  SnapshotId id;
  Image image{};
  bool held = false;  // somebody writes it
  uint64_t fill = 0;  // which time that is
};
// Parity that a node keeps for a group. Of the blocks it was made of the images are remembered: the arithmetic is room
// erasure's, and tested there.
struct ParitySlot {
  SlotStateCode state = SlotStateCode::kFree;
  SnapshotId id;
  std::map<Rank, Image> of;
  bool held = false;  // it is being made
};
struct ParityLayout {
  protect::ParityPlace place;
  std::array<ParitySlot, 2> slots;
};
struct Region {
  uint64_t id = 0;
  AttemptId seen = 0;
  KeptMarks marks;
  AttemptId lost = 0;
  std::map<Rank, std::vector<RegionSlot>> ranks;
  std::map<Rank, std::vector<CopySlot>> copies;
  std::map<Rank, std::vector<ParityLayout>> parity;  // by PeerKey::number
};
struct Transfer {
  int from = 0;
  uint64_t sender = 0;  // incarnation
  int to = 0;
  uint64_t holder = 0;  // incarnation; 0 = the order is on its way
  Rank rank = 0;
  SnapshotId id;
  Image image{};
  region::PeerMarks marks;
  uint32_t slot = 0;
  uint64_t fill = 0;        // of it
  Epoch captured_with = 0;  // of what was not sealed when it was ordered
};
// A block of an image on its way into a parity.
struct Piece {
  int from = 0;
  uint64_t sender = 0;  // incarnation
  int to = 0;
  uint64_t holder = 0;  // incarnation; 0 = the offer is on its way
  Rank rank = 0;
  SnapshotId id;
  Image image{};
  protect::ParityPlace place;
  region::PeerMarks marks;
};
// A parity that is being made, until the agent goes.
struct ParityMaking {
  protect::ParityPlace place;
  SnapshotId id;
  AttemptId attempt = 0;
  bool loading = false;
  bool begun = false;       // all have offered, and it has a slot
  AttemptId fenced_by = 0;  // one above this
  size_t slot = 0;
  std::map<Rank, int> offered;   // by which node
  std::map<Rank, Image> sealed;  // blocks that are in
};

struct SimBellSlot {
  snapshot::BellWord word;
  Image crcs{};
  int done = 0;  // chunks of this epoch
};
struct Copy {
  snapshot::SlotId slot;
  Epoch epoch = 0;
  int file = 0;
  Tag tag = 0;
  int next = 0;
};
struct SimGrant {
  snapshot::SlotId slot;
  Epoch epoch = 0;
  StepId floor = 0;
  int file = 0;
};
struct Delivery {  // to a trainer
  std::variant<snapshot::SendLoad, snapshot::SendGo, snapshot::SendNews> message;
  int file = 0;
  Image crcs{};
};
enum class Life : uint8_t { kStarting, kRestoring, kRunning, kDead };
struct Process {
  snapshot::ProcessId id = 0;
  Rank rank = 0;
  int node = 0;
  Life life = Life::kStarting;
  bool stopped = false;
  bool noticed = false;     // its death, by the agent
  uint64_t connection = 0;  // incarnation of the agent it speaks to
  Ticket ticket = 0;
  v1::Want want;
  AttemptId attempt = 0;
  StepId step = 0;
  uint32_t layout = 0;
  uint32_t room_for = 0;  // the layout that needs more memory than there is
  bool short_of = false;
  StepId pos = 0;
  StepId wanted = 0;  // to be durable
  AttemptId pos_attempt = 0;
  bool fenced = false;
  bool waiting = false;  // inside save(), for a slot
  std::vector<SimBellSlot> bell;
  std::optional<SimGrant> grant;
  std::vector<Copy> copies;
  std::deque<Delivery> inbox;
};

struct Agent {
  Agent(uint64_t id, job::Config config) : incarnation(id), job(std::move(config)) {}
  uint64_t incarnation;
  job::Machine job;
  std::map<Rank, snapshot::Machine> ranks;
  std::vector<job::StartTimer> timers;
  int retries = 0;  // snapshot::RetryAt that wait
  std::vector<std::pair<Rank, snapshot::ReadPinned>> pins;
  std::vector<int> pin_files;
  std::optional<job::Removal> removal;
  region::PeerMarks marks;
  job::StatePtr state;  // heard last, with copies on
  KeptMarks kept;       // by the one before it
  job::StatePtr late;   // its marks are still to be taken over
  job::StatePtr known;  // its marks were
  std::map<Rank, ParityMaking> making;
  AttemptId marked = 0;  // of protected_ and unprotected: the newest heard
  SnapshotId protected_, unprotected;
  uint64_t protection_turns = 0;
};
inline constexpr Rank kRemoval = ~Rank{0};  // in StoreOp and StoreAnswer: it is the removal's
struct Node {
  std::unique_ptr<Agent> agent;
  Region region;
};

struct Message {
  int to = 0;
  std::variant<job::StatePtr, job::ReportPtr> body;
};
struct StoreOp {
  int node = 0;
  uint64_t incarnation = 0;
  Rank rank = 0;  // of a snapshot effect
  std::variant<job::Effect, snapshot::Effect> effect;
  uint64_t ready = 0;   // not before this step
  uint32_t blocks = 0;  // rebuilt so far
  Image rebuilt{};
  AttemptId asked_in = 0;  // the highest attempt that the node knew then
};
struct StoreAnswer {
  int node = 0;
  uint64_t incarnation = 0;
  Rank rank = 0;
  std::variant<job::Event, snapshot::Event> event;
};

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_PARTS_H_
