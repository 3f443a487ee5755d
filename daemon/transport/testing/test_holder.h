// What room app is to the transport, in a test: keeps what is offered in plain memory, and gives it back. All but what
// is said to be for any thread on the node's loop.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_TEST_HOLDER_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_TEST_HOLDER_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/transport/copies.h"

namespace ckptd::transport {

inline constexpr uint64_t kTestChunk = uint64_t{1} << 20;

[[nodiscard]] std::string TestImage(size_t bytes, uint64_t seed = 1);
[[nodiscard]] std::vector<uint32_t> CrcsOf(const std::string& image);
[[nodiscard]] v1::CopyName CopyNameOf(uint32_t rank);
[[nodiscard]] v1::OfferRequest OfferOf(uint32_t rank, uint64_t bytes);
[[nodiscard]] v1::DescribeRequest DescribeOf(uint32_t rank);
[[nodiscard]] v1::SealRequest SealOf(uint32_t rank, const std::string& image);
// Of the node that is asked.
[[nodiscard]] TransferName NameOfCopy(const std::string& peer, uint32_t rank);

class TestHolder final : public CopyHost {
 public:
  struct Copy {
    std::string bytes;
    std::vector<int> verified;  // how often, by chunk
  };
  Nanos token_life = std::chrono::seconds(60);
  Nanos alone = std::chrono::seconds(60);
  uint64_t window = 4 * kTestChunk;

  void Offer(const std::string& peer, const v1::OfferRequest& request, CopyAnswer<v1::OfferResponse> answer) override;
  void Seal(const std::string& peer, const v1::SealRequest& request, CopyAnswer<v1::SealResponse> answer) override;
  void Describe(const std::string& peer, const v1::DescribeRequest& request,
                CopyAnswer<v1::DescribeResponse> answer) override;
  absl::StatusOr<BulkEnd> Redeem(const std::string& peer, const Hello& hello) override;

  // Any thread, while nothing moves.
  [[nodiscard]] std::shared_ptr<Copy> Of(uint32_t rank) CKPTD_EXCLUDES(mutex_);
  void Put(uint32_t rank, std::string bytes) CKPTD_EXCLUDES(mutex_);
  // Any thread: how transfers ended, in order.
  [[nodiscard]] std::vector<absl::Status> Ends() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool UntilEnds(size_t count) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] int asked() const { return asked_; }
  [[nodiscard]] int redeemed() const { return redeemed_; }
  [[nodiscard]] int most_at_once() const { return most_; }

 private:
  [[nodiscard]] absl::StatusOr<std::string> Issue(const std::string& peer, uint32_t rank);
  [[nodiscard]] ServedReceive ReceiveInto(const std::shared_ptr<Copy>& copy);
  [[nodiscard]] ServedSend SendFrom(const std::shared_ptr<Copy>& copy);

  TokenTable tokens_;
  std::map<uint32_t, bool> sends_;  // what the last token of a rank is for
  std::atomic<int> asked_{0};
  std::atomic<int> redeemed_{0};
  std::atomic<int> now_{0};
  std::atomic<int> most_{0};
  Mutex mutex_;
  CondVar changed_;
  std::map<uint32_t, std::shared_ptr<Copy>> copies_ CKPTD_GUARDED_BY(mutex_);
  std::vector<absl::Status> ends_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_TEST_HOLDER_H_
