#include "daemon/transport/testing/moving.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/transport/copy_request.h"
#include "daemon/transport/testing/test_holder.h"

namespace ckptd::transport {

void Moving::Send(const std::string& image, const SenderLimits& limits, bool all_ready) {
  const auto offered = [this, &image, limits, all_ready](const absl::StatusOr<v1::OfferResponse>& offer) {
    if (!offer.ok()) return Done(offer.status());
    BulkSource source;
    source.read = [&image](uint64_t offset, std::span<std::byte> into) {
      std::memcpy(into.data(), image.data() + offset, into.size());
      return absl::OkStatus();
    };
    Keep(node_.copies().Send(OrderOf(image.size(), offer->token(), false), source, limits, DoneHere()));
    const std::vector<uint32_t> crcs = CrcsOf(image);
    for (uint32_t i = 0; all_ready && move_ && i < crcs.size(); ++i) {
      if (!move_->ChunkReady(i, crcs[i]).ok()) std::abort();
    }
  };
  node_.Do([&] { node_.copies().Offer(peer_, OfferOf(rank_, image.size()), std::chrono::seconds(10), offered); });
}

void Moving::Receive(std::string& place, const ReceiverLimits& limits, const std::string& token) {
  const auto described = [this, &place, limits, token](const absl::StatusOr<v1::DescribeResponse>& found) {
    if (!found.ok()) return Done(found.status());
    place.assign(found->layout().slot_bytes(), '~');
    BulkTarget target;
    target.bytes = std::span<std::byte>(reinterpret_cast<std::byte*>(place.data()), place.size());
    Keep(node_.copies().Receive(OrderOf(place.size(), token.empty() ? found->token() : token, true), target, limits,
                                DoneHere()));
  };
  node_.Do([&] { node_.copies().Describe(peer_, DescribeOf(rank_), std::chrono::seconds(10), described); });
}

absl::Status Moving::Wait(Nanos patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (!done_) {
    if (!changed_.WaitUntil(mutex_, deadline)) return absl::UnknownError("the test waited in vain");
  }
  return *done_;
}

bool Moving::UntilProgress(uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  MutexLock lock(mutex_);
  while (!done_ && (!move_ || move_->Progress() < bytes)) {
    const auto now = std::chrono::steady_clock::now();
    if (now > deadline) return false;
    (void)changed_.WaitUntil(mutex_, now + std::chrono::milliseconds(2));
  }
  return move_ && move_->Progress() >= bytes;
}

MoveOrder Moving::OrderOf(uint64_t bytes, const std::string& token, bool receive) {
  MoveOrder order{peer_, NameOfCopy(peer_, rank_), bytes, kTestChunk, *TokenOf(token), nullptr};
  order.renew = [this, bytes, receive](const auto& answer) {
    const auto pass = [answer](const auto& response) {
      response.ok() ? answer(TokenOf(response->token())) : answer(response.status());
    };
    if (receive)
      node_.copies().Describe(peer_, DescribeOf(rank_), std::chrono::seconds(5), pass);
    else
      node_.copies().Offer(peer_, OfferOf(rank_, bytes), std::chrono::seconds(5), pass);
  };
  return order;
}

// Twice would be wrong.
void Moving::Done(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (done_) std::abort();
  done_ = status;
  changed_.NotifyAll();
}

void Moving::Keep(absl::StatusOr<std::unique_ptr<CopyMove>> move) {
  if (!move.ok()) return Done(move.status());
  MutexLock lock(mutex_);
  move_ = *std::move(move);
}

}  // namespace ckptd::transport
