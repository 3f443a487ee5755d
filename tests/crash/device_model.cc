#include "tests/crash/device_model.h"

namespace {

constexpr uint64_t kFactor = 6364136223846793005;
constexpr uint64_t kGranularity = 2 << 20;  // of cuMemCreate

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t Constant(uint64_t step) { return Mix(step) | 1; }

CUdeviceptr AllocateVmm(uint64_t bytes) {
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  Must(cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate");
  Must(cuMemAddressReserve(&base, bytes, 0, 0, 0), "cuMemAddressReserve");
  Must(cuMemMap(base, bytes, 0, handle, 0), "cuMemMap");
  return base;
}

}  // namespace

void Must(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw Failure(std::string(call) + " answers " + std::to_string(result));
}

Model::Model(const Shape& shape) : tensors_(shape.tensors), words_(shape.words) {
  const uint64_t bytes = tensors_ * words_ * sizeof(uint64_t) + shape.ballast;
  CUdeviceptr base = 0;
  if (shape.vmm) base = AllocateVmm(bytes);
  if (base == 0) Must(cuMemAlloc(&base, bytes), "cuMemAlloc");
  state_ = reinterpret_cast<uint64_t*>(base);
  for (uint64_t i = 0; i < tensors_ * words_; ++i) state_[i] = Mix(i);
}

void Model::Update(CUstream stream, uint64_t step) {
  next_ = step;
  auto kernel = [](void* self) { static_cast<Model*>(self)->Run(); };
  Must(cuLaunchHostFunc(stream, kernel, this), "cuLaunchHostFunc");
  Must(cuStreamSynchronize(stream), "cuStreamSynchronize");
  step_ = step;
}

void Model::Verify(uint64_t step) const {
  uint64_t factor = 1;
  uint64_t add = 0;
  for (uint64_t s = 1; s <= step; ++s) {
    factor *= kFactor;
    add = kFactor * add + Constant(s);
  }
  bool right = step_ == step;
  for (uint64_t i = 0; i < tensors_ * words_ && right; ++i) right = state_[i] == factor * Mix(i) + add;
  if (!right) throw Failure("what was restored is not the state of step " + std::to_string(step));
}

uint64_t Model::Digest() const {
  uint64_t digest = Mix(step_);
  for (uint64_t i = 0; i < tensors_ * words_; ++i) digest = Mix(digest ^ state_[i]);
  return digest;
}

std::vector<Model::Place> Model::Places() {
  std::vector<Place> places;
  for (uint64_t t = 0; t < tensors_; ++t) {
    places.push_back({"weight." + std::to_string(t), state_ + t * words_, words_ * sizeof(uint64_t), true});
  }
  places.push_back({"step", &step_, sizeof step_, false});
  return places;
}

void Model::Run() {
  const uint64_t add = Constant(next_);
  for (uint64_t i = 0; i < tensors_ * words_; ++i) state_[i] = kFactor * state_[i] + add;
}
