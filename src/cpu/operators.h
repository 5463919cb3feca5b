// operators.h - the CPU backend's operators as free functions, one per struct of backend.h, whose comments
// are the contract. Each is in the file of its topic. They expect checked arguments (validate()); memory is
// host memory. Scratch is kept per thread and grows to the largest size seen.
#pragma once

#include "backend.h"

namespace octavo::cpu {

void embedding_forward(const EmbeddingForward& op);  // also refuses token ids outside the table
void embedding_backward(const EmbeddingBackward& op);
void norm_forward(const NormForward& op);
void norm_backward(const NormBackward& op);
void matmul(const Matmul& op);
void bias_gradient(const BiasGradient& op);
void attention_forward(const AttentionForward& op);
void attention_backward(const AttentionBackward& op);
void activation_forward(const ActivationForward& op);
void activation_backward(const ActivationBackward& op);
void cross_entropy(const CrossEntropy& op);  // also refuses targets outside [-1, vocab)
void loss_sum(const LossSum& op);
void gradient_norm(const GradientNorm& op);
void adamw(const AdamW& op);
void cast(const Cast& op);
void fp8_update(const Fp8Update& op);

}  // namespace octavo::cpu
