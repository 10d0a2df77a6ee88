# What is left to do after tf_upgrade_v2, line by line; docs/porting.md says why.
s/^import parallax$/import parallax_runner as parallax/

# The tool reports that these need a check, and leaves them as they are.
s/\btf\.summary\.scalar(/tf.compat.v1.summary.scalar(/g
s/\btf\.nn\.sampled_softmax_loss(/tf.compat.v1.nn.sampled_softmax_loss(/g

# TensorFlow has these no longer: replaced.py beside the script has them.
s/^import tensorflow as tf$/import replaced\nimport tensorflow as tf/
s/\btf\.compat\.v1\.nn\.rnn_cell\./replaced./g
s/\btf\.contrib\.\(layers\|lookup\|rnn\|seq2seq\)\./replaced./g
s/\btf\.layers\./replaced./g
