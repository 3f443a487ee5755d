// The other nodes, as a test plays them.
#ifndef CKPTD_DAEMON_PROTECT_COPY_TEST_UTIL_H_
#define CKPTD_DAEMON_PROTECT_COPY_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/protect/stored_copy.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

// Keeps what is asked until the test answers it.
class FakeCopyCalls final : public transport::CopyCalls {
 public:
  struct Move final : transport::CopyMove {
    explicit Move(bool* exists) : exists(exists) { *exists = true; }
    ~Move() override { *exists = false; }
    absl::Status ChunkReady(uint32_t chunk, uint32_t crc) override {
      ready.emplace_back(chunk, crc);
      return absl::OkStatus();
    }
    void Cancel() override { cancelled = true; }
    [[nodiscard]] uint64_t Progress() const override { return 0; }
    [[nodiscard]] bool WaitsForOthers() const override { return waits; }
    std::vector<std::pair<uint32_t, uint32_t>> ready;
    bool cancelled = false;
    bool waits = false;
    bool* exists;
  };
  template <typename Request, typename Response>
  struct Asked {
    std::string peer;
    Request request;
    transport::CopyAnswer<Response> answer;
  };
  struct Moved {
    transport::MoveOrder order;
    transport::BulkTarget target;  // of Receive
    transport::MoveDone done;
    Move* move = nullptr;
  };

  void Offer(const std::string& peer, v1::OfferRequest request, Nanos,
             transport::CopyAnswer<v1::OfferResponse> answer) override {
    offers.push_back({peer, std::move(request), std::move(answer)});
  }
  void Seal(const std::string& peer, v1::SealRequest request, Nanos,
            transport::CopyAnswer<v1::SealResponse> answer) override {
    seals.push_back({peer, std::move(request), std::move(answer)});
  }
  void Describe(const std::string& peer, v1::DescribeRequest request, Nanos,
                transport::CopyAnswer<v1::DescribeResponse> answer) override {
    describes.push_back({peer, std::move(request), std::move(answer)});
  }
  absl::StatusOr<std::unique_ptr<transport::CopyMove>> Send(transport::MoveOrder order, transport::BulkSource,
                                                            const transport::SenderLimits&,
                                                            transport::MoveDone done) override {
    return Begin(sent, {std::move(order), {}, std::move(done)});
  }
  absl::StatusOr<std::unique_ptr<transport::CopyMove>> Receive(transport::MoveOrder order, transport::BulkTarget target,
                                                               const transport::ReceiverLimits&,
                                                               transport::MoveDone done) override {
    return Begin(received, {std::move(order), std::move(target), std::move(done)});
  }

  std::deque<Asked<v1::OfferRequest, v1::OfferResponse>> offers;
  std::deque<Asked<v1::SealRequest, v1::SealResponse>> seals;
  std::deque<Asked<v1::DescribeRequest, v1::DescribeResponse>> describes;
  std::deque<Moved> sent;
  std::deque<Moved> received;
  bool move_exists = false;  // the last one

 private:
  std::unique_ptr<transport::CopyMove> Begin(std::deque<Moved>& moves, Moved begun) {
    auto move = std::make_unique<Move>(&move_exists);
    begun.move = move.get();
    moves.push_back(std::move(begun));
    return move;
  }
};

// The first of what was asked; the test fails where there is none.
template <typename Asked>
[[nodiscard]] Asked Take(std::deque<Asked>& asked) {
  EXPECT_FALSE(asked.empty());
  if (asked.empty()) return Asked();
  Asked first = std::move(asked.front());
  asked.pop_front();
  return first;
}

// What was asked of the storage, for the test to answer.
struct AskedOfStorage {
  struct Read {
    size_t first = 0;
    size_t count = 0;
    StoredCopy::Came came;
    StoredCopy::Done done;
  };
  std::deque<StoredCopy::Told> describes;
  std::deque<Read> reads;
};

class FakeStoredCopy final : public StoredCopy {
 public:
  explicit FakeStoredCopy(AskedOfStorage& asked) : asked_(asked) {}
  void Describe(Told told) override { asked_.describes.push_back(scope_.Bind(std::move(told))); }
  void Read(size_t first, size_t count, Came came, Done done) override {
    asked_.reads.push_back({first, count, std::move(came), scope_.Bind(std::move(done))});
  }

 private:
  AskedOfStorage& asked_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_TEST_UTIL_H_
