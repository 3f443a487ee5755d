#include "daemon/transport/testing/test_holder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/copy_request.h"

namespace ckptd::transport {
namespace {

constexpr uint32_t kSlot = 1;
constexpr uint32_t kWorld = 64;
constexpr size_t kNoise = size_t{64} << 10;
constexpr size_t kPage = 4096;

Nanos MonotonicNow() { return SystemClock().Monotonic(); }

uint32_t RootOf(const std::vector<uint32_t>& crcs) { return Crc32c(0, crcs.data(), crcs.size() * sizeof(uint32_t)); }

v1::CopyLayout LayoutOf(uint64_t bytes) {
  v1::CopyLayout layout;
  layout.set_chunk_bytes(kTestChunk);
  layout.set_slot_bytes(bytes);
  v1::ImageSize* image = layout.add_images();
  image->set_bytes(bytes);
  image->set_header_bytes(4096);
  return layout;
}

}  // namespace

// Noise, again and again, but for each page's first word: to make a word of noise for each eight bytes takes a
// sanitizer longer than all the rest of a test.
std::string TestImage(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string image(bytes, 0);
  const auto put = [&](size_t at) {
    const uint64_t word = random();
    std::memcpy(image.data() + at, &word, std::min(sizeof word, bytes - at));
  };
  for (size_t at = 0; at < std::min(bytes, kNoise); at += sizeof(uint64_t)) put(at);
  for (size_t at = kNoise; at < bytes; at += kNoise)
    std::memcpy(image.data() + at, image.data(), std::min(kNoise, bytes - at));
  for (size_t at = 0; at < bytes; at += kPage) put(at);
  return image;
}

std::vector<uint32_t> CrcsOf(const std::string& image) {
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < image.size(); at += kTestChunk)
    crcs.push_back(Crc32c(0, image.data() + at, std::min<size_t>(kTestChunk, image.size() - at)));
  return crcs;
}

v1::CopyName CopyNameOf(uint32_t rank) {
  v1::CopyName name;
  name.set_job("gpt");
  name.set_rank(rank);
  name.mutable_snapshot()->set_attempt(2);
  name.mutable_snapshot()->set_step(1000);
  return name;
}

v1::OfferRequest OfferOf(uint32_t rank, uint64_t bytes) {
  v1::OfferRequest offer;
  *offer.mutable_copy() = CopyNameOf(rank);
  offer.set_user("1000");
  offer.set_world_size(kWorld);
  offer.set_attempt(2);
  *offer.mutable_layout() = LayoutOf(bytes);
  return offer;
}

v1::DescribeRequest DescribeOf(uint32_t rank) {
  v1::DescribeRequest request;
  *request.mutable_copy() = CopyNameOf(rank);
  request.set_user("1000");
  request.set_attempt(3);
  return request;
}

v1::SealRequest SealOf(uint32_t rank, const std::string& image) {
  v1::SealRequest seal;
  *seal.mutable_copy() = CopyNameOf(rank);
  seal.set_attempt(2);
  *seal.mutable_record()->mutable_snapshot() = seal.copy().snapshot();
  seal.mutable_record()->set_chunk_count(static_cast<uint32_t>(CrcsOf(image).size()));
  seal.set_root_crc(RootOf(CrcsOf(image)));
  return seal;
}

TransferName NameOfCopy(const std::string& peer, uint32_t rank) { return {peer, "gpt", rank, {2, 1000}, kSlot}; }

std::shared_ptr<TestHolder::Copy> TestHolder::Of(uint32_t rank) {
  MutexLock lock(mutex_);
  const auto found = copies_.find(rank);
  return found == copies_.end() ? nullptr : found->second;
}

void TestHolder::Put(uint32_t rank, std::string bytes) {
  auto copy = std::make_shared<Copy>();
  copy->verified.assign(CrcsOf(bytes).size(), 0);
  copy->bytes = std::move(bytes);
  MutexLock lock(mutex_);
  copies_[rank] = std::move(copy);
}

std::vector<absl::Status> TestHolder::Ends() {
  MutexLock lock(mutex_);
  return ends_;
}

bool TestHolder::UntilEnds(size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  MutexLock lock(mutex_);
  while (ends_.size() < count) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

absl::StatusOr<std::string> TestHolder::Issue(const std::string& peer, uint32_t rank) {
  const TransferToken token = RandomToken();
  CKPTD_RETURN_IF_ERROR(tokens_.Issue(token, NameOfCopy(peer, rank), MonotonicNow() + token_life, MonotonicNow()));
  return BytesOf(token);
}

void TestHolder::Offer(const std::string& peer, const v1::OfferRequest& request, CopyAnswer<v1::OfferResponse> answer) {
  ++asked_;
  const uint32_t rank = request.copy().rank();
  if (!Of(rank)) Put(rank, std::string(request.layout().slot_bytes(), '~'));
  sends_[rank] = false;
  absl::StatusOr<std::string> token = Issue(peer, rank);
  if (!token.ok()) return answer(token.status());
  v1::OfferResponse response;
  response.set_token(*token);
  response.set_slot(kSlot);
  answer(std::move(response));
}

void TestHolder::Seal(const std::string&, const v1::SealRequest& request, CopyAnswer<v1::SealResponse> answer) {
  ++asked_;
  const std::shared_ptr<Copy> copy = Of(request.copy().rank());
  if (!copy) return answer(Error(ErrorCode::NOT_FOUND, "no such copy"));
  const bool same = RootOf(CrcsOf(copy->bytes)) == request.root_crc();
  answer(same ? absl::StatusOr<v1::SealResponse>(v1::SealResponse()) : Error(ErrorCode::CORRUPT, "other bytes"));
}

void TestHolder::Describe(const std::string& peer, const v1::DescribeRequest& request,
                          CopyAnswer<v1::DescribeResponse> answer) {
  ++asked_;
  const uint32_t rank = request.copy().rank();
  const std::shared_ptr<Copy> copy = Of(rank);
  if (!copy) return answer(Error(ErrorCode::NOT_FOUND, "no such copy"));
  sends_[rank] = true;
  absl::StatusOr<std::string> token = Issue(peer, rank);
  if (!token.ok()) return answer(token.status());
  v1::DescribeResponse response;
  response.set_world_size(kWorld);
  *response.mutable_layout() = LayoutOf(copy->bytes.size());
  *response.mutable_record()->mutable_snapshot() = request.copy().snapshot();
  for (const uint32_t crc : CrcsOf(copy->bytes)) response.mutable_record()->add_chunk_crc(crc);
  response.mutable_record()->set_chunk_count(static_cast<uint32_t>(response.record().chunk_crc_size()));
  response.set_token(*token);
  response.set_slot(kSlot);
  answer(std::move(response));
}

ServedReceive TestHolder::ReceiveInto(const std::shared_ptr<Copy>& copy) {
  ServedReceive receive;
  receive.target.bytes = std::span<std::byte>(reinterpret_cast<std::byte*>(copy->bytes.data()), copy->bytes.size());
  receive.target.keep = copy;
  receive.target.verified = [copy](uint32_t chunk, uint32_t) {
    ++copy->verified[chunk];
    return absl::OkStatus();
  };
  receive.limits.window = window;
  receive.limits.alone = alone;
  return receive;
}

ServedSend TestHolder::SendFrom(const std::shared_ptr<Copy>& copy) {
  ServedSend send;
  send.source.read = [copy](uint64_t offset, std::span<std::byte> into) {
    std::memcpy(into.data(), copy->bytes.data() + offset, into.size());
    return absl::OkStatus();
  };
  send.source.keep = copy;
  send.chunk_crcs = CrcsOf(copy->bytes);
  return send;
}

absl::StatusOr<BulkEnd> TestHolder::Redeem(const std::string&, const Hello& hello) {
  CKPTD_RETURN_IF_ERROR(tokens_.Redeem(hello.token, hello.name, MonotonicNow()));
  ++redeemed_;
  const std::shared_ptr<Copy> copy = Of(hello.name.rank);
  BulkEnd end;
  end.name = hello.name;
  end.image_bytes = copy->bytes.size();
  end.chunk_bytes = kTestChunk;
  if (sends_[hello.name.rank])
    end.end = SendFrom(copy);
  else
    end.end = ReceiveInto(copy);
  most_ = std::max<int>(most_, ++now_);
  end.done = [this](const absl::Status& status) {
    --now_;
    MutexLock lock(mutex_);
    ends_.push_back(status);
    changed_.NotifyAll();
  };
  return end;
}

}  // namespace ckptd::transport
