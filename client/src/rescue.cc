#include "client/src/rescue.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/src/exports.h"
#include "client/src/piece_copier.h"

namespace ckptd {
namespace {

bool Say(std::string* why, const char* what, const char* error) {
  *why = std::string(what) + ": " + error;
  return false;
}

bool MakeFile(const char* name, uint64_t bytes, UniqueFd* out) {
  *out = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return out->valid() && ftruncate(out->get(), static_cast<off_t>(bytes)) == 0 &&
         fcntl(out->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
}

uint64_t HostBytes(const Registration& registration) {
  uint64_t bytes = registration.shape->extra.bytes;
  for (uint32_t tensor : registration.shape->order) {
    if (registration.devices.lane(tensor) == DeviceTensors::kHost) bytes += registration.shape->tensors[tensor].bytes;
  }
  return bytes;
}

const char* WhyNot(const Registration& registration, const std::vector<DeviceAllocation>& allocations) {
  if (HostBytes(registration) > Rescue::kMostHostBytes) return "more than 64 MiB of the state are in host memory";
  if (!registration.devices.direct.empty()) return "more than 64 MiB of eager tensors are on the GPU";
  // With a legacy handle nobody promises what the memory holds when its process is gone.
  bool stays = std::all_of(allocations.begin(), allocations.end(), [](const DeviceAllocation& allocation) {
    return allocation.kind == HandleKind::kPosixFd || allocation.kind == HandleKind::kFabric;
  });
  return stays ? nullptr : "its memory may go with the process; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
}

}  // namespace

std::shared_ptr<Rescue> Rescue::Make(std::shared_ptr<const Registration> registration,
                                     const std::vector<DeviceAllocation>& allocations, std::string* why) {
  if (const char* reason = WhyNot(*registration, allocations)) {
    *why = reason;
    return nullptr;
  }
  auto rescue = std::make_shared<Rescue>(std::move(registration), allocations);
  const std::shared_ptr<Device> device = rescue->registration_->devices.first_device();
  bool made = rescue->page_.Make(device, "rescue page", sizeof(RescuePage), why) && rescue->MakeAreas(why);
  return made ? rescue : nullptr;
}

std::array<int, 1 + kRescueAreas> Rescue::files() const { return {page_.file(), areas_[0].get(), areas_[1].get()}; }

// Headers and pads never change: they are written once.
bool Rescue::MakeAreas(std::string* why) {
  ListHostPieces();
  const uint64_t slot_bytes = registration_->shape->slot_bytes;
  for (UniqueFd& area : areas_) {
    if (!MakeFile("ckptd-rescue-area", slot_bytes, &area)) return Say(why, "rescue area", strerror(errno));
    uint64_t failed_at = 0;
    PieceCopier copier(registration_->pieces, area.get(), nullptr);
    if (int error = copier.CopyUntil(slot_bytes, &failed_at)) return Say(why, "rescue area", strerror(error));
  }
  return true;
}

// In the order of the slot, with holes filled by pieces without a source: as PieceCopier wants them.
void Rescue::ListHostPieces() {
  const Shape& shape = *registration_->shape;
  extra_.resize(shape.extra.bytes);
  std::vector<Piece> pieces = {{extra_.data(), shape.extra.slot_offset, shape.extra.bytes}};
  for (uint32_t tensor : shape.order) {
    if (registration_->devices.lane(tensor) != DeviceTensors::kHost) continue;
    const TensorPlace& place = shape.tensors[tensor];
    pieces.push_back({static_cast<const char*>(registration_->data[tensor]), place.slot_offset, place.bytes});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.slot_offset < b.slot_offset; });
  uint64_t at = 0;
  for (const Piece& piece : pieces) {
    if (piece.slot_offset > at) host_pieces_.push_back({nullptr, at, piece.slot_offset - at});
    host_pieces_.push_back(piece);
    at = piece.slot_offset + piece.bytes;
  }
  if (at < shape.slot_bytes) host_pieces_.push_back({nullptr, at, shape.slot_bytes - at});
}

void Rescue::Break() {
  broken_ = true;
  Disarm();
}

void Rescue::Disarm() {
  if (page_.data() != nullptr) page().armed.store(0, std::memory_order_release);
}

bool Rescue::armed() const { return page().armed.load(std::memory_order_acquire) == 1; }

// Null: there are more streams than words.
std::atomic<uint64_t>* Rescue::WordOf(DeviceStream stream) {
  auto found = std::find(streams_.begin(), streams_.end(), stream.handle);
  const auto index = static_cast<size_t>(found - streams_.begin());
  if (index + 1 >= kRescueStreams) return nullptr;
  if (found == streams_.end()) streams_.push_back(stream.handle);
  return &page().begun[index + 1];
}

void Rescue::Begin(const DeviceStream* stream) {
  MutexLock lock(mutex_);
  if (broken_ || serial_ == 0) return;
  if (stream == nullptr) {
    page().begun[0].store(serial_ + 1, std::memory_order_release);
    return;
  }
  const std::atomic<uint64_t>* word = WordOf(*stream);
  ContextScope scope(lane().device());
  if (word == nullptr || !scope.error().ok() || !page_.Write(*stream, *word, serial_ + 1).ok()) Break();
}

bool Rescue::Fill(int area, const Published& published) {
  const TensorPlace& extra = registration_->shape->extra;
  if (published.extra_bytes > extra.bytes) return false;
  memcpy(extra_.data(), published.extra, published.extra_bytes);
  memset(extra_.data() + published.extra_bytes, ' ', extra.bytes - published.extra_bytes);
  uint64_t failed_at = 0;
  PieceCopier copier(host_pieces_, area, nullptr);
  return copier.CopyUntil(registration_->shape->slot_bytes, &failed_at) == 0;
}

// The copies of eager tensors are written by the stream too: from here to `done` they are of no step.
DeviceError Rescue::Enqueue(const Published& published, uint64_t serial) {
  const DeviceStream stream = lane().caller();
  ContextScope scope(lane().device());
  DeviceError error = scope.error();
  if (error.ok() && !published.staged && !registration_->devices.staged.empty()) {
    const std::atomic<uint64_t>* word = WordOf(stream);
    if (word == nullptr) return {DeviceFault::kRefused, 0, "too many streams"};
    error = page_.Write(stream, *word, serial);
    if (error.ok()) error = StageEagerTensors(*registration_);
  }
  if (error.ok()) error = page_.Write(stream, page().done, serial);
  return error;
}

bool Rescue::Publish(const Published& published) {
  MutexLock lock(mutex_);
  if (broken_) return true;
  if (!StillThere(allocations_)) {
    Break();
    return false;
  }
  const uint64_t serial = serial_ + 1;
  const size_t turn = serial % kRescueAreas;
  RescueArea& area = page().areas[turn];
  area.serial.store(0, std::memory_order_release);
  if (!Fill(areas_[turn].get(), published)) {
    Disarm();
    return true;
  }
  area.step.store(published.step, std::memory_order_relaxed);
  area.attempt.store(published.attempt, std::memory_order_relaxed);
  area.serial.store(serial, std::memory_order_release);
  serial_ = serial;
  if (Enqueue(published, serial).ok()) {
    page().armed.store(1, std::memory_order_release);
  } else {
    Break();
  }
  return true;
}

}  // namespace ckptd
