// A rank's snapshot that several agents have, from some of them at once. share_out.h decides who brings which chunks;
// each range is a question (Describe names it) and a transfer of its own, and every chunk is checked by the record
// before it reaches the slot.
//
// All have to tell the same record, which is that of the first to answer; whoever tells another one is left out. A
// source that is not there, does not answer, gives bytes that are not what they should be or ends in the middle is
// lost: another one takes its place, and its chunks go to the others. One that stands still or is slow is not lost, it
// is given less. The last one that is left is waited for as long as the transport does.
//
// What is committed is on storage too, which is one more source of a restore that takes longer than a second: an agent
// that is slow or stopped does not hold it up then. Nobody waits for the storage, as it may hang: a read that comes
// late writes nothing, and where no agent is left the fetch ends, for a fetch from the storage alone knows what to say
// of one that hangs.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_SHARED_FETCH_H_
#define CKPTD_DAEMON_PROTECT_SHARED_FETCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/protect/copy_fetch.h"
#include "daemon/protect/piece_source.h"
#include "daemon/protect/share_out.h"
#include "daemon/protect/stored_copy.h"

namespace ckptd::protect {

struct SharedOutcome {
  absl::Status status;
  v1::CopyRecord record;
  std::vector<std::pair<std::string, uint64_t>> brought;  // bytes, by agent
  uint64_t from_storage = 0;                              // bytes
  absl::Status storage;                                   // why it was lost
  std::vector<std::string> differing;                     // agents that told another record than the others
};

class SharedFetch {
 public:
  static constexpr size_t kAtOnce = 4;  // agents

  struct Ends {
    Loop& loop;
    const Clock& clock;
    CopyFetch::Whose whose;
    PieceSource::Calls calls;
    PieceSource::Attempt attempt;
  };
  using Ended = std::function<void(SharedOutcome)>;

  // One agent at least, none of them this one. `stored` may be null. `ended` comes in a turn of its own.
  SharedFetch(Ends ends, CopyFetch::Request request, CopyFetch::Into into, std::unique_ptr<StoredCopy> stored,
              Ended ended);
  ~SharedFetch();
  void Start();

 private:
  struct Source;
  struct Board;

  void Join();
  void Give(size_t i);
  void Answered(size_t i, const absl::StatusOr<v1::DescribeResponse>& answer);
  [[nodiscard]] bool IsRelieved(size_t i);
  [[nodiscard]] absl::Status TakeRecord(size_t i, const v1::CopyRecord& told);
  [[nodiscard]] absl::Status Receive(size_t i, const v1::DescribeResponse& told);
  void AskStorage();
  void StorageTold(const absl::StatusOr<v1::CopyRecord>& told);
  void ReadStored(size_t i);
  void Brought(size_t i, const absl::Status& status);
  void Lose(size_t i, const absl::Status& why);
  void LogLost(const Source& source, const absl::Status& why) const;
  void AgentLost(const Source& source, const absl::Status& why);
  void StorageLost(const absl::Status& why);
  void Look();
  void LookLater();
  void End(const absl::Status& status);
  void MaybeFinish();
  [[nodiscard]] bool StillWrites();
  [[nodiscard]] SharedOutcome Result() const;
  [[nodiscard]] v1::DescribeRequest RequestFor(const ShareOut::Range& range) const;

  const Ends ends_;
  const CopyFetch::Request request_;
  const CopyFetch::Into into_;
  Ended ended_;
  std::vector<std::unique_ptr<Source>> sources_;  // the storage last
  std::unique_ptr<StoredCopy> stored_;
  std::shared_ptr<Board> board_;
  std::shared_ptr<const v1::CopyRecord> record_;  // since one has told
  std::string told_by_;
  std::vector<std::string> differing_;
  absl::Status last_;     // why an agent was lost
  absl::Status storage_;  // why the storage was
  absl::Status status_;
  size_t next_ = 0;  // agent who joins
  size_t moving_ = 0;
  bool looks_later_ = false;
  bool over_ = false;
  bool finished_ = false;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_SHARED_FETCH_H_
