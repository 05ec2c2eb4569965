"""Questions and answers: where they come from, and how they reach the model."""

from train.data.files import DataError as DataError
from train.data.files import RowError as RowError
from train.data.masked import MaskedDataset as MaskedDataset
from train.data.masked import mask_rows as mask_rows
from train.data.packing import PackedDataset as PackedDataset
from train.data.packing import pack as pack
from train.data.packing import plan_rows as plan_rows
from train.data.pipeline import Buckets as Buckets
from train.data.pipeline import eval_batches as eval_batches
from train.data.pipeline import make_buckets as make_buckets
from train.data.pipeline import train_batches as train_batches
from train.data.rows import Row as Row
from train.data.splits import OWN_FILES as OWN_FILES
from train.data.splits import Splits as Splits
from train.data.splits import load_splits as load_splits
from train.data.transforms import CausalDataset as CausalDataset
from train.data.transforms import TokenizedDataset as TokenizedDataset
from train.data.transforms import tokenize_rows as tokenize_rows
