// Two ends of a bulk connection inside one process, on which a test cuts, damages and holds back what passes.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_BULK_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_BULK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_stream.h"

namespace ckptd::transport {

struct FakeBulkFaults {
  uint64_t cut_after = UINT64_MAX;   // frames of both directions together
  uint64_t deaf_after = UINT64_MAX;  // frames; later ones get lost
  std::function<void(std::string& data)> damage{};
};

// Both ends; each of them keeps it.
class FakeBulk {
 public:
  using Ends = std::pair<std::shared_ptr<BulkStream>, std::shared_ptr<BulkStream>>;
  [[nodiscard]] static Ends Connect(FakeBulkFaults faults = {});

 private:
  friend class FakeBulkEnd;
  struct Frame {
    Incoming what;
    std::string data;
  };
  struct Side {
    std::deque<Frame> frames;  // on their way to it
    std::function<void()> changed;
    bool over = false;  // nothing more comes to it
  };

  explicit FakeBulk(FakeBulkFaults faults) : faults_(std::move(faults)) {}
  void Put(int to, Frame frame) CKPTD_EXCLUDES(mutex_);
  void EndFor(int to) CKPTD_EXCLUDES(mutex_);
  void Tell() CKPTD_EXCLUDES(mutex_);

  const FakeBulkFaults faults_;
  Mutex mutex_;
  uint64_t passed_ CKPTD_GUARDED_BY(mutex_) = 0;
  Side sides_[2] CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_BULK_H_
