// What a test does with ports and with streams, from its own thread.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_ENDS_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_ENDS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/transfer_run.h"

namespace ckptd::transport {

// One end of a stream that the test drives.
class TestEnd {
 public:
  TestEnd() = default;
  explicit TestEnd(std::shared_ptr<BulkStream> stream);
  [[nodiscard]] BulkStream& operator*() const { return *stream_; }
  [[nodiscard]] BulkStream* operator->() const { return stream_.get(); }
  // False: not within 20 s.
  [[nodiscard]] bool Until(const std::function<bool()>& so) const;
  // The next that comes; nothing: the end came, or an error, which is kept.
  [[nodiscard]] std::optional<Incoming> Next();
  [[nodiscard]] bool UntilWritable() const {
    return Until([this] { return stream_->writable(); });
  }
  [[nodiscard]] const absl::Status& error() const { return error_; }
  void LetGo() { stream_.reset(); }

 private:
  std::shared_ptr<BulkStream> stream_;
  std::shared_ptr<Wake> wake_;
  absl::Status error_;
};

// What came to a port, in order.
class TestDoor {
 public:
  // Answers each.
  explicit TestDoor(BulkPort& port);
  ~TestDoor() { port_.Serve(nullptr); }
  [[nodiscard]] std::shared_ptr<BulkGuest> Next();  // null: none within 20 s
  [[nodiscard]] size_t count() const { return kept_->Count(); }

 private:
  struct Kept {
    Mutex mutex;
    CondVar changed;
    std::vector<std::shared_ptr<BulkGuest>> guests CKPTD_GUARDED_BY(mutex);
    size_t count CKPTD_GUARDED_BY(mutex) = 0;
    void CountOne() CKPTD_EXCLUDES(mutex);
    [[nodiscard]] size_t Count() CKPTD_EXCLUDES(mutex);
  };
  BulkPort& port_;
  const std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

// Waits for the answer.
[[nodiscard]] absl::StatusOr<OpenedBulk> DialNow(BulkPort& port, const BulkAddress& to, const std::string& hello,
                                                 Nanos patience = std::chrono::seconds(20));
// Looks again and again, for 20 s.
[[nodiscard]] bool Eventually(const std::function<bool()>& so);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_ENDS_H_
